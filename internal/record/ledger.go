package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/internal/plainfile"
)

// Key names an attachment.
type Key struct {
	ContainerID string `json:"containerID"`
	Network     string `json:"network"`
	IfName      string `json:"ifName"`
}

// Ledger remembers which attachments an owner has ever recorded, and which of
// them are known to be gone, for longer than their records last: a record can be
// lost, and a power cut can bring back what was deleted. It is a hint for what
// is collected as garbage, so it is not synced, and of a ledger that was not
// settled for long the older part is dropped.
type Ledger struct{ path string }

// ledgerSize is how much is kept before the older part is dropped, twice: some
// five thousand attachments each.
const ledgerSize = 1 << 20

// Ledger is that of the owner.
func (s *Store) Ledger(owner string) *Ledger {
	h := sha256.Sum256([]byte(owner))
	return &Ledger{filepath.Join(s.dir, "ledger."+hex.EncodeToString(h[:8]))}
}

// ledgerLine is what is known of an attachment from then on.
type ledgerLine struct {
	Key
	Gone bool `json:"gone,omitempty"`
}

// Add notes attachments that are recorded now, or with gone that nothing was
// left of them. The directory must be there. Calls may overlap, in other
// processes too.
func (l *Ledger) Add(gone bool, keys ...Key) error {
	lines, err := encodeLines(gone, keys)
	if err == nil && len(lines) > 0 {
		err = l.append(lines)
	}
	if err != nil {
		return fmt.Errorf("ledger of attachments: %w", err)
	}
	return nil
}

func encodeLines(gone bool, keys []Key) ([]byte, error) {
	var lines []byte
	for _, k := range keys {
		line, err := encodeLine(ledgerLine{k, gone})
		if err != nil {
			return nil, err
		}
		lines = append(lines, line...)
	}
	return lines, nil
}

func (l *Ledger) append(lines []byte) error {
	f, err := plainfile.Open(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	// The newline in front ends a line that was torn.
	_, err = f.Write(append([]byte("\n"), lines...))
	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err != nil {
		return err
	}
	if info.Size() > ledgerSize {
		// Two processes that do this at once drop more than is needed.
		return ignoreMissing(os.Rename(l.path, l.path+".old"))
	}
	return nil
}

// Read returns what the ledger says last of each attachment: true if it is
// gone. Lines that cannot be read are passed over.
func (l *Ledger) Read() (map[Key]bool, error) {
	known := make(map[Key]bool)
	for _, path := range []string{l.path + ".old", l.path} {
		data, err := plainfile.Read(path)
		if ignoreMissing(err) != nil {
			return nil, fmt.Errorf("ledger of attachments: %w", err)
		}
		for line := range bytes.Lines(data) {
			var one ledgerLine
			if decodeLine(line, &one) == nil {
				known[one.Key] = one.Gone
			}
		}
	}
	return known, nil
}

// Settle leaves only these, as recorded. No Add may be under way.
func (l *Ledger) Settle(keys []Key) error {
	lines, err := encodeLines(false, keys)
	if err == nil {
		err = l.replace(lines)
	}
	if err != nil {
		return fmt.Errorf("ledger of attachments: %w", err)
	}
	return nil
}

func (l *Ledger) replace(lines []byte) error {
	tmp := l.path + tmpExt
	if err := os.WriteFile(tmp, lines, 0o600); err != nil {
		return errors.Join(err, remove(tmp))
	}
	return errors.Join(os.Rename(tmp, l.path), remove(l.path+".old"))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
