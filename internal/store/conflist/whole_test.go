package conflist

import (
	"reflect"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestWholeParsesToTheSameConfiguration(t *testing.T) {
	list, err := Parse([]byte(`{"cniVersions": ["0.4.0", "1.0.0"], "name": "net", "disableGC": "true", "plugins": [
		{"type": "first",  "big": 9007199254740993, "text": "<&>"}, {"type": "second"}]}`))
	expect.NoError(t, err)
	more, err := Parse([]byte(`{"name": "net", "plugins": [{"type": "third"}]}`))
	expect.NoError(t, err)
	list.Plugins = append(list.Plugins, more.Plugins...)
	whole, err := Whole(list)
	expect.NoError(t, err)
	got, err := Parse(whole)
	expect.Must(t, err == nil, "%s: %v", whole, err)
	want := *list
	want.Bytes, want.LoadOnlyInlinedPlugins = whole, true
	expect.That(t, reflect.DeepEqual(*got, want), "got  %+v\nwant %+v", *got, want)
}

// Records of earlier versions are compared with what Whole writes, byte by byte.
func TestWholeWritesTheSameBytesAsEver(t *testing.T) {
	list, err := Parse([]byte(`{"cniVersion": "1.0.0", "name": "ab", "disableCheck": true, "plugins": [ {"type": "x"} , {"type": "y", "n": 1} ]}`))
	expect.NoError(t, err)
	got, err := Whole(list)
	want := `{"cniVersion":"1.0.0","disableCheck":true,"disableGC":false,"loadOnlyInlinedPlugins":true,"name":"ab",` +
		`"plugins":[{"type": "x"},{"type": "y", "n": 1}]}`
	expect.That(t, err == nil && string(got) == want, "got  %s, %v\nwant %s", got, err, want)
}
