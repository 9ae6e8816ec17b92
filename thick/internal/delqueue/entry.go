package delqueue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/embedcni/cni/netns"
)

// Entry is a DEL: the environment and the configuration that the plugin got.
type Entry struct {
	Env     map[string]string `json:"env"` // CNI_* alone
	Config  []byte            `json:"config"`
	Network string            `json:"network"` // the name in Config
	// At is when the DEL was asked for, which is before anybody can ask for another ADD.
	At Moment `json:"at"`
	// NetNS identifies the namespace that CNI_NETNS led to; zero if it led to none.
	NetNS netns.ID `json:"netns,omitzero"`
	// Trace are the fields of a request's head that continue the runtime's trace.
	Trace map[string]string `json:"trace,omitempty"`

	file string // its name in the directory; set by Put and List
}

// Ends reports whether the DEL was for the attachment of the same container, interface and
// network that a daemon knows, and otherwise why not. added is when its ADD began, zero if
// that is not known, ns the namespace that its path leads to now, zero if that is none or
// not known, and boot the machine's boot now. In doubt it is for another one: then nothing
// alive is harmed, and an attachment whose container is dead is recovered by its record.
func (e *Entry) Ends(added Moment, ns netns.ID, boot string) (bool, string) {
	switch {
	case added == Moment{}:
		return false, "it is not known when the interface was attached"
	case e.At.Boot == added.Boot:
		if e.At.Nanos <= added.Nanos {
			return false, "the interface was attached after the DEL"
		}
		if e.NetNS != (netns.ID{}) && ns != (netns.ID{}) && e.NetNS != ns {
			return false, fmt.Sprintf("the container is in another namespace, %v instead of %v", ns, e.NetNS)
		}
		return true, ""
	case e.At.Boot == boot:
		return true, "" // the attachment is of an earlier boot
	case added.Boot == boot:
		return false, "the interface was attached after a reboot, the DEL is from before"
	}
	return false, "the interface and the DEL are from different boots, neither is this one"
}

// covers reports whether e ends all attachments that another entry of the same
// attachment's name ends.
func (e *Entry) covers(other *Entry) bool {
	return e.key() == other.key() && e.At.Boot == other.At.Boot && e.At.Nanos >= other.At.Nanos &&
		(e.NetNS == other.NetNS || e.NetNS == netns.ID{})
}

// key names the attachment as a part of a file name.
func (e *Entry) key() string {
	h := sha256.New()
	for _, part := range []string{e.Env["CNI_CONTAINERID"], e.Env["CNI_IFNAME"], e.Network} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// format is the version of the files. A new optional field needs no new one.
const format = 1

// file is the content of a file.
//
//	{"format":1,"sha256":"9f86d0…","del":{"env":{"CNI_COMMAND":"DEL",…},…}}
type file struct {
	Format int             `json:"format"`
	Sum    string          `json:"sha256"` // of DEL
	DEL    json.RawMessage `json:"del"`
}

func encode(e *Entry) ([]byte, error) {
	del, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(file{format, sum(del), del})
	if err == nil && len(data) > maxEntry {
		err = fmt.Errorf("the entry has %d bytes, and may have %d", len(data), maxEntry)
	}
	return data, err
}

func decode(data []byte) (*Entry, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	if f.Sum != sum(f.DEL) {
		return nil, fmt.Errorf("%w: wrong checksum", ErrBad)
	}
	if f.Format < 1 {
		return nil, fmt.Errorf("%w: no format", ErrBad)
	}
	if f.Format > format {
		return nil, fmt.Errorf("%w: format %d", ErrNewer, f.Format)
	}
	var e Entry
	if err := json.Unmarshal(f.DEL, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBad, err)
	}
	return &e, nil
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
