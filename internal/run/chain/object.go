package chain

import (
	"bytes"
	"encoding/json"
	"errors"
)

// object is a JSON object that keeps its values to the byte and its keys in
// order. Like encoding/json, it gives a repeated key its last value.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// parseObject splits an object. Of null or nothing it makes an empty one.
func parseObject(data []byte) (o object, err error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	if !json.Valid(data) {
		return nil, json.Unmarshal(data, new(json.RawMessage)) // its syntax error
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	for d.More() {
		var value json.RawMessage
		key, err := d.Token()
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return nil, err
		}
		o.set(key.(string), value)
	}
	return o, nil
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

func (o object) bytes() []byte {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, quoted(m.key)...), ':'), m.value...)
	}
	return append(b, '}')
}

// quoted returns a text as JSON.
func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // no string is an error
	return b
}
