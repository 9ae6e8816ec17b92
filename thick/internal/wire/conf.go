package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// Conf are the fields of a configuration that concern the call rather than a plugin.
type Conf struct {
	CNIVersion string
	Name       string
	// Valid are the attachments that a GC keeps: cni.dev/valid-attachments. It is nil for
	// other verbs.
	Valid []types.GCAttachment
	// ReadinessFile is Multus' readinessIndicatorFile: ADD waits for the file.
	ReadinessFile string
}

// oldest is the first version that has the verb (CNI specification, changes of 0.4.0 and
// 1.1.0).
func oldest(verb string) string {
	switch verb {
	case Check:
		return "0.4.0"
	case GC, Status:
		return "1.1.0"
	default:
		return ""
	}
}

// ParseConf reads the configuration of a call, and checks it as upstream's skeleton of
// plugins does: it is an object, has a valid name, is of a version that upstream
// implements, and that version has the verb.
func ParseConf(verb string, config []byte) (*Conf, *types.Error) {
	if trimmed := bytes.TrimSpace(config); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration: not a JSON object", "")
	}
	var c struct {
		CNIVersion    string          `json:"cniVersion"`
		Name          string          `json:"name"`
		Valid         json.RawMessage `json:"cni.dev/valid-attachments"`
		ReadinessFile string          `json:"readinessIndicatorFile"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration: "+err.Error(), "")
	}
	if err := utils.ValidateNetworkName(c.Name); err != nil {
		return nil, err
	}
	if c.CNIVersion == "" {
		c.CNIVersion = "0.1.0" // types/create.DecodeVersion
	}
	if err := checkVersion(verb, c.CNIVersion); err != nil {
		return nil, err
	}
	conf := &Conf{CNIVersion: c.CNIVersion, Name: c.Name, ReadinessFile: c.ReadinessFile}
	if verb == GC {
		valid, err := parseValid(c.Valid)
		if err != nil {
			return nil, err
		}
		conf.Valid = valid
	}
	return conf, nil
}

func checkVersion(verb, of string) *types.Error {
	if err := (&version.Reconciler{}).Check(of, version.All); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	first := oldest(verb)
	if first == "" {
		return nil
	}
	ok, err := version.GreaterThanOrEqualTo(of, first)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if !ok {
		return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+verb,
			fmt.Sprintf("config version is %q, %s needs %s", of, verb, first))
	}
	return nil
}

// parseValid reads the attachments that a GC keeps. A missing list is refused: it does not
// mean that nothing is valid. libcni writes an empty list as null.
func parseValid(list json.RawMessage) ([]types.GCAttachment, *types.Error) {
	refuse := func(format string, args ...any) *types.Error {
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid cni.dev/valid-attachments", fmt.Sprintf(format, args...))
	}
	if list == nil {
		return nil, refuse("missing")
	}
	valid := []types.GCAttachment{}
	if err := json.Unmarshal(list, &valid); err != nil {
		return nil, refuse("%v", err)
	}
	for i, a := range valid {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, refuse("entry %d names no container or no interface", i)
		}
	}
	return valid, nil
}
