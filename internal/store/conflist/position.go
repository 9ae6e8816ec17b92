package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
)

// Located adds the line and the column in data to an error of encoding/json about data.
func Located(data []byte, err error) error {
	syntax, other := (*json.SyntaxError)(nil), (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.As(err, &syntax):
		return at(data, int(syntax.Offset)-1, err)
	case errors.As(err, &other):
		return at(data, valueBefore(data, other.Offset), err)
	}
	return err
}

// locatedInList is Located for an error of libcni about a list, of which it decodes each
// plugin by itself, and not from these bytes.
func locatedInList(data []byte, err error) error {
	if !errors.As(err, new(*json.UnmarshalTypeError)) {
		return Located(data, err)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(json.Unmarshal(data, &map[string]any{}), &wrong) {
		return at(data, valueBefore(data, wrong.Offset), err)
	}
	for _, start := range pluginsIn(data) {
		var raw json.RawMessage
		if json.NewDecoder(bytes.NewReader(data[start:])).Decode(&raw) != nil {
			return err
		}
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(json.Unmarshal(raw, &types.PluginConf{}), &wrong) {
			return at(data, start+valueBefore(raw, wrong.Offset), err)
		}
	}
	return err
}

// at names the line and the column of a byte. The end of data is a place in it.
func at(data []byte, offset int, err error) error {
	before := data[:min(max(offset, 0), len(data))]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return fmt.Errorf("%w at line %d, column %d", err, bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(line)+1)
}

// valueBefore returns the offset at which the token begins that ends at an offset, or around
// it: encoding/json reports a value of another type when it has read it.
func valueBefore(data []byte, end int64) int {
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		start := next(data, d.InputOffset())
		if _, err := d.Token(); err != nil || d.InputOffset() >= end {
			return start
		}
	}
}

// pluginsIn returns the offsets of a list's plugins.
func pluginsIn(data []byte) (starts []int) {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil { // the list's brace
		return nil
	}
	for d.More() {
		key, err := d.Token()
		start := next(data, d.InputOffset())
		if key == "plugins" && start < len(data) && data[start] == '[' {
			starts, err = elements(d, data)
		} else if err == nil {
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return nil
		}
	}
	return starts
}

// elements returns the offsets of the elements of the array that a decoder reads next.
func elements(d *json.Decoder, data []byte) (starts []int, err error) {
	if _, err = d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		starts = append(starts, next(data, d.InputOffset()))
		if err = d.Decode(new(json.RawMessage)); err != nil {
			return nil, err
		}
	}
	_, err = d.Token()
	return starts, err
}

// next returns the offset of the first byte from an offset on that separates no tokens.
func next(data []byte, from int64) int {
	return len(data) - len(bytes.TrimLeft(data[from:], " \t\r\n,:"))
}
