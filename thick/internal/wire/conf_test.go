package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/internal/wire"
)

func TestConfigurationOfACall(t *testing.T) {
	for name, c := range map[string]struct {
		verb, config string
		want         wire.Conf
	}{
		"multus": {"ADD", `{"cniVersion":"0.3.1","name":"m","type":"x","readinessIndicatorFile":"/run/ready"}`,
			wire.Conf{CNIVersion: "0.3.1", Name: "m", ReadinessFile: "/run/ready"}},
		"without version": {"DEL", `{"name":"m"}`, wire.Conf{CNIVersion: "0.1.0", Name: "m"}},
		"CHECK":           {"CHECK", ` {"cniVersion":"0.4.0","name":"m"}`, wire.Conf{CNIVersion: "0.4.0", Name: "m"}},
		"STATUS":          {"STATUS", `{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":7}`, wire.Conf{CNIVersion: "1.1.0", Name: "m"}},
		"GC": {"GC", `{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`,
			wire.Conf{CNIVersion: "1.1.0", Name: "m", Valid: []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}}}},
		"GC keeps nothing": {"GC", `{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":[]}`,
			wire.Conf{CNIVersion: "1.1.0", Name: "m", Valid: []types.GCAttachment{}}},
	} {
		got, err := wire.ParseConf(c.verb, []byte(c.config))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
	if got, err := wire.ParseConf("GC", []byte(`{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":null}`)); err != nil || len(got.Valid) != 0 {
		t.Errorf("an empty list as libcni writes it: %+v, %v", got, err)
	}
}

func TestConfigurationOfACallIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		verb, config string
		code         uint
		want         string
	}{
		"empty":              {"ADD", ``, 6, "not a JSON object"},
		"list":               {"ADD", `[]`, 6, "not a JSON object"},
		"cut":                {"ADD", `{"name":"m"`, 6, "unexpected end"},
		"name is a number":   {"ADD", `{"name":1}`, 6, "cannot unmarshal number"},
		"no name":            {"ADD", `{"cniVersion":"1.0.0"}`, 7, "missing network name"},
		"name is a path":     {"ADD", `{"name":"a/b"}`, 7, "invalid characters"},
		"future":             {"ADD", `{"cniVersion":"9.0.0","name":"m"}`, 1, "incompatible CNI versions"},
		"no version":         {"ADD", `{"cniVersion":"new","name":"m"}`, 1, "incompatible CNI versions"},
		"CHECK before 0.4.0": {"CHECK", `{"cniVersion":"0.3.1","name":"m"}`, 1, "does not allow CHECK"},
		"GC before 1.1.0":    {"GC", `{"cniVersion":"1.0.0","name":"m","cni.dev/valid-attachments":[]}`, 1, "does not allow GC"},
		"STATUS before":      {"STATUS", `{"name":"m"}`, 1, "does not allow STATUS"},
		"GC without a list":  {"GC", `{"cniVersion":"1.1.0","name":"m"}`, 7, "missing"},
		"GC of containers":   {"GC", `{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":[{"containerID":"a"}]}`, 7, "entry 0"},
		"GC of a string":     {"GC", `{"cniVersion":"1.1.0","name":"m","cni.dev/valid-attachments":"a"}`, 7, "cannot unmarshal"},
	} {
		got, err := wire.ParseConf(c.verb, []byte(c.config))
		if err == nil {
			t.Errorf("%s: %+v was accepted", name, *got)
		} else if got != nil || err.Code != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: code %d: %v; want code %d with %q", name, err.Code, err, c.code, c.want)
		}
	}
}
