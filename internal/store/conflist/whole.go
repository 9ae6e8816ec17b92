package conflist

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/libcni"
)

// Whole writes a configuration as one list with every plugin in it, those that
// were read from other files included, so that it can be parsed again without
// them. Plugins keep their bytes.
func Whole(list *libcni.NetworkConfigList) (json.RawMessage, error) {
	head, err := json.Marshal(struct { // the keys in the order of the alphabet, as in earlier versions' records
		CNIVersion    string `json:"cniVersion"`
		DisableCheck  bool   `json:"disableCheck"`
		DisableGC     bool   `json:"disableGC"`
		LoadOnlyThese bool   `json:"loadOnlyInlinedPlugins"`
		Name          string `json:"name"`
	}{list.CNIVersion, list.DisableCheck, list.DisableGC, true, list.Name})
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", list.Name, err)
	}
	b := bytes.NewBuffer(bytes.TrimSuffix(head, []byte("}")))
	b.WriteString(`,"plugins":[`)
	for i, p := range list.Plugins {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(bytes.TrimSpace(p.Bytes))
	}
	b.WriteString("]}")
	return b.Bytes(), nil
}
