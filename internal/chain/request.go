package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// object is a JSON object whose values stay the bytes they were and whose keys
// keep their order. A key that stands twice has its last value, as
// encoding/json has it.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

func parseObject(data []byte) (object, error) {
	if json.Valid(data) {
		if o, ok := scanObject(data); ok {
			return o, nil
		}
	}
	return decodeObject(data)
}

// decodeObject is parseObject with words for what is wrong. It takes twenty
// times as long.
func decodeObject(data []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil {
		return nil, err
	} else if tok != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var o object
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := tok.(string)
		if !ok {
			return nil, fmt.Errorf("a JSON object's key is %v", tok)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o.set(key, value)
	}
	_, err := dec.Token()
	return o, err
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

func (o *object) take(key string) (json.RawMessage, bool) {
	value, ok := o.get(key)
	*o = slices.DeleteFunc(*o, func(m member) bool { return m.key == key })
	return value, ok
}

func (o object) bytes() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Request returns the request configuration of a plugin of the list, with a
// result of the plugins before it.
func (c *Chain) Request(position int, a *Attachment, result Partial) ([]byte, error) {
	x := &adding{c: c, a: a, prev: json.RawMessage(result)}
	return x.request(position)
}

// derive lays what the runtime adds over a plugin's configuration. Keys that
// are the runtime's to write are dropped from the configuration first, so that
// a file cannot forge a result or a capability.
func derive(plugin []byte, added object, configArgs map[string]any) ([]byte, error) {
	config, err := parseObject(plugin)
	if err != nil {
		return nil, fmt.Errorf("plugin configuration: %w", err)
	}
	config = slices.DeleteFunc(config, func(m member) bool { return reserved(m.key) })
	if len(configArgs) > 0 {
		args, _ := config.get("args")
		merged, err := mergeArgs(args, configArgs)
		if err != nil {
			return nil, err
		}
		config.set("args", merged)
	}
	for _, m := range added {
		config.set(m.key, m.value)
	}
	return config.bytes()
}

// reserved keys are found in any case, as a plugin written in Go finds them.
func reserved(key string) bool {
	for _, own := range []string{"runtimeConfig", "prevResult", "capabilities"} {
		if strings.EqualFold(key, own) {
			return true
		}
	}
	const prefix = "cni.dev/"
	return len(key) >= len(prefix) && strings.EqualFold(key[:len(prefix)], prefix)
}

// mergeArgs writes the caller's values into {"cni": {…}} of what the
// configuration has for args; the caller's win.
func mergeArgs(args json.RawMessage, given map[string]any) (json.RawMessage, error) {
	outer, err := objectOrEmpty(args)
	if err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	cni, _ := outer.get("cni")
	inner, err := objectOrEmpty(cni)
	if err != nil {
		return nil, fmt.Errorf("args.cni: %w", err)
	}
	for _, key := range sortedKeys(given) {
		value, err := json.Marshal(given[key])
		if err != nil {
			return nil, fmt.Errorf("args.cni.%s: %w", key, err)
		}
		inner.set(key, value)
	}
	merged, err := inner.bytes()
	if err != nil {
		return nil, err
	}
	outer.set("cni", merged)
	return outer.bytes()
}

func objectOrEmpty(raw json.RawMessage) (object, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	return parseObject(raw)
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
