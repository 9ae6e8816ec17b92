package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// A line is the checksum of what follows, a space, and JSON:
//
//	5f0c… {"format":2,"record":{"containerID":"c1", …}}
//
// The sum is there for what disks and file systems do, not against an
// adversary: who can write the file can do as he likes.
const sumLen = 16

func encodeLine(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	line := append(sum(data), ' ')
	return append(append(line, data...), '\n'), nil
}

func sum(data []byte) []byte {
	s := sha256.Sum256(data)
	return hex.AppendEncode(nil, s[:sumLen/2])
}

// decodeLine reads a line, with or without its newline.
func decodeLine(line []byte, v any) error {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if len(line) <= sumLen || line[sumLen] != ' ' {
		return fmt.Errorf("%w: not a line of one", ErrBad)
	}
	data := line[sumLen+1:]
	if !bytes.Equal(sum(data), line[:sumLen]) {
		return fmt.Errorf("%w: checksum", ErrBad)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", ErrBad, err)
	}
	return nil
}

// base is the first line.
type base struct {
	Format int     `json:"format"`
	Record *Record `json:"record"`
}

func encodeBase(r *Record) ([]byte, error) { return encodeLine(base{Format: format, Record: r}) }

func decodeBase(data []byte) (*Record, error) {
	var b base
	if err := decodeLine(data, &b); err != nil {
		return nil, err
	}
	if b.Format != format {
		return nil, fmt.Errorf("%w: format %d, known is %d", ErrBad, b.Format, format)
	}
	if b.Record == nil || b.Record.ContainerID == "" {
		return nil, fmt.Errorf("%w: no container", ErrBad)
	}
	return b.Record, nil
}

// decodeLog reads the lines of a log and passes over those that are damaged: the
// power went while they were written, or the disk has lost them. What they said
// can be found out again, what the others say can not be found twice.
func decodeLog(data []byte) []Entry {
	var entries []Entry
	for line := range bytes.Lines(bytes.TrimLeft(data, "\n")) { // behind what fills the block up
		var e Entry
		if decodeLine(line, &e) == nil {
			entries = append(entries, e)
		}
	}
	return entries
}
