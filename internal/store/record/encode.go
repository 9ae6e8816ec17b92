package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// A line is the checksum of the JSON, a space, and the JSON:
//
//	5f0c… {"format":2,"record":{"containerID":"c1", …}}
//
// The sum detects damage by disks and file systems. It does not protect against
// an adversary, who can write the file and forge the sum.
const sumLen = 16

// EncodeLine encodes a value as a line.
func EncodeLine(v any) ([]byte, error) {
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

// DecodeLine reads a line, with or without its newline.
func DecodeLine(line []byte, v any) error {
	data, err := checked(line)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: %w", ErrBad, err)
	}
	return nil
}

// checked returns the JSON of a line whose checksum is right.
func checked(line []byte) ([]byte, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if len(line) <= sumLen || line[sumLen] != ' ' {
		return nil, fmt.Errorf("%w: malformed line", ErrBad)
	}
	data := line[sumLen+1:]
	if !bytes.Equal(sum(data), line[:sumLen]) {
		return nil, fmt.Errorf("%w: checksum", ErrBad)
	}
	return data, nil
}

// base is the first line of a record file.
type base[R any] struct {
	Format int `json:"format"`
	Record R   `json:"record"`
}

func encodeBase(r *Record) ([]byte, error) {
	if !r.later {
		return EncodeLine(base[*Record]{format, r})
	}
	data, err := encodeWhole(reflect.ValueOf(r).Elem())
	if err != nil {
		return nil, err
	}
	return EncodeLine(base[json.RawMessage]{format, data})
}

// decodeBase reads the first line. With ErrNewer it returns the fields that it
// could read, with ErrBad nil.
func decodeBase(line []byte) (*Record, error) {
	data, err := checked(line)
	if err != nil {
		return nil, err
	}
	if r := plain(data); r != nil {
		return r, nil
	}
	var b base[json.RawMessage]
	err = json.Unmarshal(data, &b) // a damaged line has no valid checksum
	switch {
	case err == nil && b.Format > format:
		err = fmt.Errorf("format %d, known is %d", b.Format, format)
	case err == nil && b.Format != format:
		return nil, fmt.Errorf("%w: format %d, known is %d", ErrBad, b.Format, format)
	}
	r := &Record{}
	if derr := decodeEach(b.Record, reflect.ValueOf(r).Elem()); err == nil {
		err = derr
	}
	switch {
	case err != nil:
		r.unknown = nil // nobody rewrites it
		r.Attachments = slices.DeleteFunc(r.Attachments, func(n Attachment) bool { return n.IfName == "" })
		return r, fmt.Errorf("%w: %w", ErrNewer, err)
	case r.ContainerID == "":
		return nil, fmt.Errorf("%w: no container", ErrBad)
	}
	r.later = true
	return r, nil
}

// plain decodes a record without unknown fields, which nearly every record is.
// For other records it returns nil.
func plain(data []byte) *Record {
	var b base[*Record]
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if d.Decode(&b) != nil || b.Format != format || b.Record == nil || b.Record.ContainerID == "" {
		return nil
	}
	return b.Record
}

// decodeLog decodes the lines of a log and skips damaged ones: the power failed
// while they were written, or the disk has lost them. The runtime can find the
// content of a lost line again, but not that of the others.
func decodeLog(data []byte) []Entry {
	var entries []Entry
	for line := range bytes.Lines(bytes.TrimLeft(data, "\n")) { // earlier versions padded the block with newlines
		var e Entry
		if DecodeLine(line, &e) == nil {
			entries = append(entries, e)
		}
	}
	return entries
}
