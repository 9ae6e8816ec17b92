package chain

import (
	"encoding/json"
	"unicode/utf8"
)

// scanObject takes valid JSON apart, and tells whether it is an object. The
// values are parts of data.
func scanObject(data []byte) (o object, ok bool) {
	i := space(data, 0)
	if data[i] != '{' {
		return nil, false
	}
	for i = space(data, i+1); data[i] != '}'; {
		end := value(data, i)
		key, ok := unquote(data[i:end])
		if !ok {
			return nil, false
		}
		i = space(data, space(data, end)+1) // behind the colon
		end = value(data, i)
		o.set(key, json.RawMessage(data[i:end:end]))
		if i = space(data, end); data[i] == ',' {
			i = space(data, i+1)
		}
	}
	return o, true
}

// unquote is the text of a string. One with escapes, or with bytes that are not
// UTF-8, is left to encoding/json.
func unquote(quoted []byte) (text string, ok bool) {
	inner := quoted[1 : len(quoted)-1]
	if utf8.Valid(inner) && plain(inner) {
		return string(inner), true
	}
	err := json.Unmarshal(quoted, &text)
	return text, err == nil
}

func plain(text []byte) bool {
	for _, c := range text {
		if c == '\\' {
			return false
		}
	}
	return true
}

// space is where the next token begins.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// value is where the value that begins at i ends.
func value(data []byte, i int) int {
	switch data[i] {
	case '"':
		return quoted(data, i)
	case '{', '[':
		return nested(data, i)
	}
	for i < len(data) {
		switch data[i] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return i
		}
		i++
	}
	return i
}

func quoted(data []byte, i int) int {
	for i++; data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// nested is where an object or a list ends. In valid JSON the two are closed in
// the order in which they were opened, so that counting is enough.
func nested(data []byte, i int) int {
	for depth := 0; ; {
		switch data[i] {
		case '"':
			i = quoted(data, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
}
