package conflist_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

// TestJSONErrorsNameTheLine: encoding/json counts bytes, of what libcni has encoded again.
func TestJSONErrorsNameTheLine(t *testing.T) {
	const list, plugin = "error parsing configuration list: ", "error parsing configuration: "
	const notString = "json: cannot unmarshal number into Go struct field PluginConf.type of type string"
	for name, test := range map[string]struct{ list, want string }{
		"nothing":      {"", list + "unexpected end of JSON input at line 1, column 1"},
		"cut off":      {"{\"name\": \"net\",\n  \"plugins\": [\n", list + "unexpected end of JSON input at line 2, column 15"},
		"no list":      {"\n  []", list + "json: cannot unmarshal array into Go value of type map[string]interface {} at line 2, column 3"},
		"a comma":      {"{\n  \"name\": \"net\",\n}", list + "invalid character '}' looking for beginning of object key string at line 3, column 1"},
		"runes":        {`{"name": "nüt" "x"}`, list + `invalid character '"' after object key:value pair at line 1, column 16`},
		"more than it": {"{}\n x", list + "invalid character 'x' after top-level value at line 2, column 2"},
		"the second plugin": {
			"{\"name\": \"net\", \"plugins\": [\n  {\"type\": \"x\", \"a\": [1, {}]},\n  {\"z\": 0, \"type\" :\n    12 }]}",
			"failed to parse plugin config 1: " + plugin + notString + " at line 4, column 5",
		},
		"a plugin that is none": {
			"{\"plugins\": [{\"type\": \"x\"}, \"x\"], \"name\": \"net\"}",
			"failed to parse plugin config 1: " + plugin + "json: cannot unmarshal string into Go value of type types.PluginConf at line 1, column 29",
		},
		"an object in a plugin": {
			"{\"name\": \"net\", \"plugins\": [{\"type\": \"x\",\n\"ipam\": [\"a\"]}]}",
			"failed to parse plugin config 0: " + plugin + "json: cannot unmarshal array into Go struct field PluginConf.ipam of type types.IPAM at line 2, column 9",
		},
	} {
		_, err := conflist.Parse([]byte(test.list))
		expect.Same(t, name, err.Error(), test.want)
		path := filepath.Join(t.TempDir(), "10-net.conflist")
		expect.NoError(t, os.WriteFile(path, []byte(test.list), 0o644))
		_, err = conflist.Reader{}.File(path)
		expect.Same(t, name+", in a file", err.Error(), path+": "+test.want)
	}
}

func TestJSONErrorsOfASinglePluginNameTheLine(t *testing.T) {
	for conf, want := range map[string]string{
		"{\n\"name\": \"net\"\n":                "error parsing configuration: unexpected end of JSON input at line 2, column 14",
		"{\"name\": \"net\",\n \"type\": true}": "error parsing configuration: json: cannot unmarshal bool into Go struct field PluginConf.type of type string at line 2, column 10",
	} {
		_, err := conflist.ParseSingle([]byte(conf))
		expect.Same(t, "single", err.Error(), want)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "10-net.conflist")
	expect.NoError(t, os.WriteFile(path, []byte(`{"cniVersion": "1.1.0", "name": "net"}`), 0o644))
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "net"), 0o755))
	own := filepath.Join(dir, "net", "10-a.conf")
	expect.NoError(t, os.WriteFile(own, []byte("{\n  \"type\": \"x\" 1}"), 0o644))
	_, err := conflist.Reader{}.File(path)
	expect.Same(t, "of its own directory", err.Error(), path+": "+own+": error parsing configuration: invalid character '1' after object key:value pair at line 2, column 15")
}
