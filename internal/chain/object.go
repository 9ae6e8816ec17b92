package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// object is a JSON object that keeps its values to the byte and its keys in
// order. Like encoding/json, it gives a repeated key its last value.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// parseObject splits an object. The values are parts of data.
func parseObject(data []byte) (o object, err error) {
	if !json.Valid(data) {
		return nil, json.Unmarshal(data, new(json.RawMessage)) // its syntax error
	}
	if data = bytes.TrimSpace(data); data[0] != '{' {
		return nil, errors.New("not a JSON object")
	}
	depth, start, key := 0, 1, ""
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case ':':
			if depth == 1 {
				if key, err = unquote(bytes.TrimSpace(data[start:i])); err != nil {
					return nil, err
				}
				start = i + 1
			}
		case ',', '}', ']':
			if value := bytes.TrimSpace(data[start:i]); depth == 1 && len(value) > 0 {
				o.set(key, value)
				start = i + 1
			}
			if c != ',' {
				depth--
			}
		}
	}
	return o, nil
}

// unquote returns the text of a valid JSON string.
func unquote(quoted []byte) (text string, err error) {
	if text = string(quoted[1 : len(quoted)-1]); !plain(text) {
		err = json.Unmarshal(quoted, &text)
	}
	return text, err
}

// plain reports whether encoding/json writes the text as it is, between quotes.
func plain(text string) bool {
	for _, c := range []byte(text) {
		if c < ' ' || c >= utf8.RuneSelf || strings.IndexByte(`"\<>&`, c) >= 0 {
			return false
		}
	}
	return true
}

func (o object) get(key string) (json.RawMessage, bool) {
	for _, m := range o {
		if m.key == key {
			return m.value, true
		}
	}
	return nil, false
}

func (o *object) set(key string, value json.RawMessage) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{key, value})
}

func (o object) bytes() ([]byte, error) {
	size := len("{}")
	for _, m := range o {
		size += len(`"":,`) + len(m.key) + len(m.value)
	}
	b := append(make([]byte, 0, size), '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		if plain(m.key) {
			b = append(append(append(b, '"'), m.key...), '"')
		} else {
			key, err := json.Marshal(m.key)
			if err != nil {
				return nil, err
			}
			b = append(b, key...)
		}
		b = append(append(b, ':'), m.value...)
	}
	return append(b, '}'), nil
}

func objectOrEmpty(raw json.RawMessage) (object, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	return parseObject(raw)
}
