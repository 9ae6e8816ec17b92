package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// value is a JSON value with its place in the file.
type value struct {
	offset  int
	members []member // of an object, in the order of the file
	items   []value  // of an array
	scalar  any      // string, json.Number, bool, or nil
	kind    kind
}

type member struct {
	key    string
	offset int // of the key
	value
}

// kind is the kind of a JSON value, as a person calls it.
type kind string

const (
	object kind = "an object"
	array  kind = "a list"
	text   kind = "a string"
	number kind = "a number"
	truth  kind = "true or false"
	null   kind = "null"
)

// get returns a member of an object, the last of that name as encoding/json does, or nil.
func (v *value) get(key string) *member {
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].key == key {
			return &v.members[i]
		}
	}
	return nil
}

// str returns a member of an object that is a string, or "".
func (v *value) str(key string) string {
	if m := v.get(key); m != nil {
		s, _ := m.scalar.(string) // "" for another kind
		return s
	}
	return ""
}

// true reports whether a member of an object is true.
func (v *value) true(key string) bool {
	m := v.get(key)
	return m != nil && m.scalar == true
}

// reader reads values and remembers where they begin.
type reader struct {
	data []byte
	dec  *json.Decoder
}

// syntaxError is a mistake of JSON, at an offset of the file.
type syntaxError struct {
	offset int
	err    error
}

func (e *syntaxError) Error() string { return e.err.Error() }
func (e *syntaxError) Unwrap() error { return e.err }

// parse reads a file with one value.
func parse(data []byte) (v value, err error) {
	r := &reader{data, json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	if !utf8.Valid(data) {
		return v, &syntaxError{badRune(data), errors.New("the file is not UTF-8")}
	}
	if v, err = r.value(); err != nil {
		return v, err
	}
	end := r.next()
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return v, &syntaxError{end, errors.New("there is something behind the configuration")}
	}
	return v, nil
}

// badRune returns the offset of the first byte that is not UTF-8.
func badRune(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(data)
}

// next returns where the next token begins.
func (r *reader) next() int {
	at := int(r.dec.InputOffset())
	for at < len(r.data) && bytes.IndexByte([]byte(" \t\r\n,:"), r.data[at]) >= 0 {
		at++
	}
	return at
}

func (r *reader) token() (json.Token, int, error) {
	at := r.next()
	t, err := r.dec.Token()
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return nil, at, &syntaxError{at, err}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, at, &syntaxError{len(r.data), errors.New("the file ends in the middle of the configuration")}
	}
	if err != nil {
		return nil, at, fmt.Errorf("read JSON: %w", err)
	}
	return t, at, nil
}

func (r *reader) value() (value, error) {
	t, at, err := r.token()
	if err != nil {
		return value{offset: at}, err
	}
	v := value{offset: at, scalar: t}
	switch t := t.(type) {
	case json.Delim:
		v.scalar = nil
		if t == '{' {
			v.kind = object
			return v, r.object(&v)
		}
		v.kind = array
		return v, r.array(&v)
	case string:
		v.kind = text
	case json.Number:
		v.kind = number
	case bool:
		v.kind = truth
	default:
		v.kind = null
	}
	return v, nil
}

func (r *reader) object(v *value) error {
	for r.dec.More() {
		key, at, err := r.token()
		if err != nil {
			return err
		}
		name, _ := key.(string) // the decoder accepts no other key
		of, err := r.value()
		if err != nil {
			return err
		}
		v.members = append(v.members, member{name, at, of})
	}
	_, _, err := r.token()
	return err
}

func (r *reader) array(v *value) error {
	for r.dec.More() {
		of, err := r.value()
		if err != nil {
			return err
		}
		v.items = append(v.items, of)
	}
	_, _, err := r.token()
	return err
}

// position returns the line and the column of an offset, both from 1; the column counts
// characters, as editors do.
func position(data []byte, offset int) (line, column int) {
	before := data[:min(offset, len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1
}
