package chain

import (
	"encoding/json"
	"reflect"
	"testing"
)

// objects are JSON in its variety, and what is none.
var objects = []string{
	`{}`, ` { } `, `{"a":1}`, "\n{\t\"a\" :\r1 , \"b\": [ {\"c\":\"}\"} , 2 ] }\n", `{"a":1,"b":2,"a":3}`,
	`{"a":"\\\"}","b":{"c":[[],{}],"d":"]"}}`, `{"\u0061":1,"\"":2,"\\":3}`, `{"a":-1.5e+3,"b":true,"c":null,"d":false}`,
	`{"":{"":""}}`, `{"ä":"ö","<&>":"<&>"}`, "{\"\xff\":\"\xff\"}", `{"a":9007199254740993}`,
	`[]`, `1`, `"{}"`, `null`, ``, ` `, `{`, `{"a"`, `{"a":}`, `{"a":1,}`, `{"a":1}}`, `{"a":1} x`, `{1:2}`, `{"a":1 "b":2}`,
}

// TestParseObjectIsWhatTheDecoderSays, whichever way it goes.
func TestParseObjectIsWhatTheDecoderSays(t *testing.T) {
	for _, text := range objects {
		sameObject(t, []byte(text))
	}
}

func FuzzParseObject(f *testing.F) {
	for _, text := range objects {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { sameObject(t, data) })
}

func sameObject(t *testing.T, data []byte) {
	t.Helper()
	got, err := parseObject(data)
	want, wantErr := decodeObject(data)
	if !reflect.DeepEqual(got, want) || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
		t.Errorf("%q: got %q, %v, want %q, %v", data, got, err, want, wantErr)
	}
	if !json.Valid(data) {
		return
	}
	if _, ok := scanObject(data); ok != (wantErr == nil) {
		t.Errorf("%q: scanned is %v, want error %v", data, ok, wantErr)
	}
}

// TestStubSaysItsPosition under the key by which it is found.
func TestStubSaysItsPosition(t *testing.T) {
	c := newChain(t, &recorder{}, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{"type":"b","capabilities":{"mac":true}}]}`)
	got, err := parseObject(stub(1, c.List.Plugins[1]))
	want := object{{"type", json.RawMessage(`"b"`)}, {"capabilities", json.RawMessage(`{"mac":true}`)}, {positionKey, json.RawMessage(`1`)}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
