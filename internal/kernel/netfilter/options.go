package netfilter

import (
	"encoding/json"
	"os"

	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/internal/kernel/thread"
)

// Options hold the facts and the resources that a runtime provides for calls about
// one attachment. The zero Options are those of a call without a runtime.
type Options struct {
	// Sockets keep sockets open between calls.
	Sockets *nft.Pool

	// Held is inherited by the processes that are started, because they finish
	// their work even if the caller is killed. A lock on it is held until they end.
	Held *os.File

	// Siblings returns the siblings of the attachment. It is called only if they
	// matter.
	Siblings func() Siblings

	// Records is the directory of the records. Programs with records of their own do not
	// know each other's containers, so that each has rules of its own for a network.
	Records string

	// Notes is the attachment's record.
	Notes Notes

	// Batch has Add and Remove return at once. The rules are made and deleted when it
	// is flushed, in one transaction.
	Batch *thread.Batch

	// Detected is the packet filter that was detected for the attachment: a result of
	// [Detect] or DetectedFirewalld, or "" if it is not known.
	Detected string

	// Executable means that a reference plugin may have made the attachment, so that
	// nobody knows which packet filter it found.
	Executable bool
}

// Notes keep facts in an attachment's record.
type Notes interface {
	// Fact returns the last note under key, or nil.
	Fact(key string) json.RawMessage
	// Note records a value under key.
	Note(key string, value any) error
}

// DisplacedFact is the key of the note that another attachment's masquerading of an address
// became this one's. If the other lives, it gets that back.
const DisplacedFact = "netfilter.displaced"
