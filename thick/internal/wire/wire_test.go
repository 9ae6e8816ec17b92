package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
)

// multus has the bytes that Multus v4.3.0's api.Request is encoded to.
const multus = `{"env":{"CNI_ARGS":"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=0a1b;K8S_POD_UID=6e1c",` +
	`"CNI_COMMAND":"ADD","CNI_CONTAINERID":"0a1b","CNI_IFNAME":"eth0","CNI_NETNS":"/var/run/netns/cni-1","CNI_PATH":"/opt/cni/bin"},` +
	`"config":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoibXVsdHVzLWNuaS1uZXR3b3JrIiwidHlwZSI6Im11bHR1cy1zaGltIn0="}`

func TestARequestInMultusFormIsReadAndWrittenToTheByte(t *testing.T) {
	config := `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim"}`
	r := expect.Value(wire.DecodeRequest(strings.NewReader(multus), wire.MaxRequest))(t)
	expect.Same(t, "the configuration", string(r.Config), config)
	expect.Same(t, "written again", string(expect.Value(json.Marshal(r))(t)), multus)
}

func TestConfigurationAsObjectKeepsItsBytes(t *testing.T) {
	config := `{ "name" : "n",  "large": 9007199254740993, "html": "<&>" }`
	r, err := wire.DecodeRequest(strings.NewReader(`{"env":{}, "config": `+config+` }`), wire.MaxRequest)
	if err != nil || string(r.Config) != config {
		t.Errorf("%s, %v; want %s", r.Config, err, config)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for body, want := range map[string]string{
		``:                          "unexpected end of JSON input",
		`{"env":{}`:                 "unexpected end of JSON input",
		`{} {}`:                     "invalid character",
		`[]`:                        "cannot unmarshal array",
		`{"env":{"CNI_COMMAND":1}}`: "cannot unmarshal number",
		`{"env":[]}`:                "cannot unmarshal array",
		`{"config":"%%"}`:           "illegal base64",
		`{"config":"e30"}`:          "illegal base64", // without padding
		`{"config":7}`:              "neither a base64 string nor an object",
		`{"config":[1]}`:            "neither a base64 string nor an object",
	} {
		r, err := wire.DecodeRequest(strings.NewReader(body), wire.MaxRequest)
		said := (*types.Error)(nil)
		if r != nil || !errors.As(err, &said) || said.Code != types.ErrDecodingFailure || !strings.Contains(said.Msg, want) {
			t.Errorf("%s: %v, %v; want code 6 with %q", body, r, err, want)
		}
	}
}

func TestDecodeReadsNoMoreThanItsLimit(t *testing.T) {
	body := `{"env":{"CNI_COMMAND":"ADD"}}`
	if _, err := wire.DecodeRequest(strings.NewReader(body), int64(len(body))); err != nil {
		t.Errorf("a request of the limit's size: %v", err)
	}
	rest := strings.NewReader(body + strings.Repeat(" ", 1000))
	expect.Is(t, expect.Err(wire.DecodeRequest(rest, int64(len(body)))), wire.ErrTooLarge)
	expect.Same(t, "bytes left unread", rest.Len(), 999)
	gone := errors.New("gone")
	expect.Is(t, expect.Err(wire.DecodeRequest(iotest.ErrReader(gone), 10)), gone)
	expect.Is(t, expect.Err(wire.DecodeRequest(io.MultiReader(strings.NewReader(`{"env`), iotest.ErrReader(gone)), 100)), gone)
}

func TestEnvironKeepsOnlyVariablesOfCNI(t *testing.T) {
	got := wire.Environ([]string{"CNI_COMMAND=ADD", "PATH=/bin", "CNI_ARGS=a=b;c=d", "CNI_EMPTY=", "CNI_NOTHING", "AWS_SECRET=x", "=C:=C:"})
	want := map[string]string{"CNI_COMMAND": "ADD", "CNI_ARGS": "a=b;c=d", "CNI_EMPTY": ""}
	expect.Same(t, "fields", got, want)
}

func result() *types100.Result {
	_, network, _ := net.ParseCIDR("10.1.0.0/16")
	return &types100.Result{
		CNIVersion: "1.0.0",
		Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/run/netns/a"}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv4(10, 1, 0, 7).To4(), Mask: network.Mask}}},
	}
}

func TestResultOfEveryVersionIsAnsweredAsMultusDoes(t *testing.T) {
	old := expect.Value(result().GetAsVersion("0.4.0"))(t)
	want := `{"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.1.0.7/16","interface":0}]}}`
	for _, r := range []types.Result{result(), old.(*types040.Result)} {
		body, err := wire.EncodeResult(r, "1.1.0")
		if err != nil || string(body) != want {
			t.Errorf("%s, %v; want %s", body, err, want)
		}
		back := expect.Value(wire.DecodeResult(body))(t)
		if again, err := wire.EncodeResult(back, "1.1.0"); err != nil || string(again) != want {
			t.Errorf("%s, %v; want %s", again, err, want)
		}
	}
	for _, version := range []string{"0.1.0", "0.4.0", "1.0.0"} { // as a shim that knows no later one can read it
		body := expect.Value(wire.EncodeResult(old, version))(t)
		expect.Same(t, "answer for "+version, string(body), strings.Replace(want, "1.1.0", "1.0.0", 1))
	}
	if body, err := wire.EncodeResult(nil, "1.1.0"); err == nil {
		t.Errorf("no result was encoded as %s", body)
	}
	if body, err := wire.EncodeResult(&types100.Result{CNIVersion: "9.0.0"}, "1.1.0"); err == nil {
		t.Errorf("a result of version 9.0.0 was encoded as %s", body)
	}
}

func TestAnswersWithoutResult(t *testing.T) {
	for _, body := range []string{"", "\n", `{}`, `{"Result":null}`} {
		if r, err := wire.DecodeResult([]byte(body)); r != nil || err != nil {
			t.Errorf("%q: %v, %v", body, r, err)
		}
	}
	said := (*types.Error)(nil)
	if r, err := wire.DecodeResult([]byte(`<html>`)); r != nil || !errors.As(err, &said) || said.Code != types.ErrDecodingFailure {
		t.Errorf("%v, %v", r, err)
	}
}

func TestErrorsKeepCodeAndDetails(t *testing.T) {
	said := types.NewError(11, "try again", "subnet \"x\" is full")
	body, media := wire.EncodeError(errors.Join(errors.New("first"), said))
	if want := `{"code":11,"msg":"try again","details":"subnet \"x\" is full"}`; string(body) != want || media != "application/json" {
		t.Errorf("%s (%s), want %s", body, media, want)
	}
	if got := wire.DecodeError(400, body); *got != *said {
		t.Errorf("%+v, want %+v", got, said)
	}
	body, media = wire.EncodeError(errors.New("no such pod"))
	if string(body) != "no such pod\n" || media != "text/plain; charset=utf-8" {
		t.Errorf("%q (%s)", body, media)
	}
	for in, want := range map[string]types.Error{
		string(body):      {Code: 999, Msg: "no such pod", Details: "status 400"},
		"":                {Code: 999, Msg: "the daemon refused the request", Details: "status 400"},
		`{"error":"x"}`:   {Code: 999, Msg: `{"error":"x"}`, Details: "status 400"},
		`{"code":7}`:      {Code: 7},
		`{"msg":"plain"}`: {Msg: "plain"},
		strings.Repeat("é", 4<<10) + "x": {Code: 999, Details: "status 400",
			Msg: strings.Repeat("é", 2<<10) + " …"},
	} {
		if got := wire.DecodeError(400, []byte(in)); *got != want {
			t.Errorf("%.40q: %+v, want %+v", in, got, want)
		}
	}
}

// FuzzDecodeRequest: an accepted request can be encoded and decoded again without a
// change, and its arguments are refused with a code, or can be written again.
func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		multus, `null`, `{"config":{}}`,
		`{"env":{"CNI_COMMAND":"DEL","CNI_CONTAINERID":"a","CNI_ARGS":"a=b;c="}}`, `{"env":{"CNI_COMMAND":"GC","CNI_PATH":"/a:/b"},"config":null}`,
		`{"env":{"CNI_COMMAND":"CHECK","CNI_CONTAINERID":"a","CNI_NETNS":"/n","CNI_IFNAME":"eth0\u0000","CNI_NETNS_OVERRIDE":"TRUE"}}`,
		`{"ENV":{"CNI_COMMAND":"ADD"},"Config":"e30="}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := wire.DecodeRequest(bytes.NewReader(body), 1<<16)
		if err != nil {
			return
		}
		encoded := expect.Value(json.Marshal(r))(t)
		back, err := wire.DecodeRequest(bytes.NewReader(encoded), wire.MaxRequest)
		if err != nil {
			t.Fatalf("%s: %v", encoded, err)
		}
		if again, err := json.Marshal(back); err != nil || !bytes.Equal(again, encoded) || !bytes.Equal(back.Config, r.Config) {
			t.Errorf("%s became %s, %v", encoded, again, err)
		}
		for _, rules := range []wire.Rules{{}, {IfName: wire.DefaultIfName}, {Kubernetes: true}} {
			checkArgs(t, rules, r.Env)
		}
	})
}

func checkArgs(t *testing.T, rules wire.Rules, env map[string]string) {
	args, err := rules.Parse(env)
	if (args == nil) == (err == nil) || err != nil && err.Code == 0 {
		t.Fatalf("%v, %v", args, err)
	}
	if err != nil {
		return
	}
	var pairs []string
	for key, value := range args.Args {
		pairs = append(pairs, key+"="+value)
	}
	env = maps.Clone(env)
	env["CNI_ARGS"] = strings.Join(pairs, ";")
	if again, err := rules.Parse(env); err != nil || !reflect.DeepEqual(again, args) {
		t.Errorf("%+v became %+v, %v", args, again, err)
	}
}
