package chain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Decode reads a recorded result of any version. It returns nil if there is no
// usable one.
func Decode(data json.RawMessage) *types100.Result {
	r, err := decodeResult(data)
	if err != nil {
		return nil
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil || Walkable(result) != nil {
		return nil
	}
	return result
}

// DecodeGiven reads the result that a plugin is given, or has returned; nil if there is
// none. It should have the configuration's version, and is read as that if it states none.
// After a change of the configuration it may state another version, and is read as that one.
func DecodeGiven(configVersion string, data json.RawMessage) (*types100.Result, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	if !bytes.HasPrefix(data, []byte(encodedPrefix)) { // else it is an object that states its version
		if err := json.Unmarshal(data, &struct{}{}); err != nil {
			return nil, err // of encoding/json, which names the kind of value that is not an object
		}
		var err error
		if data, err = withVersion(data, configVersion); err != nil {
			return nil, err
		}
	}
	r, err := decodeResult(data)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// encodedPrefix begins a result of version 1.x as built-in plugins and the CNI project's
// library write it.
const encodedPrefix = `{"cniVersion":"1.`

// decodeResult is [create.CreateFromBytes], which decodes a result twice: first for its
// version.
func decodeResult(data json.RawMessage) (types.Result, error) {
	if bytes.HasPrefix(data, []byte(encodedPrefix)) {
		if r, err := types100.NewResult(data); err == nil {
			return r, nil
		}
	}
	return create.CreateFromBytes(data)
}

// Previous returns a result of any version as the previous result for plugins of a
// configuration's version. The error is an ErrInvalidResult.
func Previous(result []byte, configVersion string) (Partial, error) {
	if err := ValidateResult(result, configVersion); err != nil {
		return nil, err
	}
	var prev Partial
	err := guard(func() error {
		versioned, err := withVersion(result, configVersion)
		if err != nil {
			return err
		}
		r, err := create.CreateFromBytes(versioned)
		if err == nil {
			r, err = r.GetAsVersion(cmp.Or(configVersion, "0.1.0"))
		}
		if err == nil {
			prev, err = json.Marshal(r)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return prev, nil
}

// Walkable returns an error if a list in the result contains a null, or an index
// points past its list. [ValidateResult] does the same for the output of a
// plugin.
func Walkable(result *types100.Result) error {
	if result == nil {
		return errors.New("there is no result")
	}
	if i := slices.Index(result.Interfaces, nil); i >= 0 {
		return fmt.Errorf("interface %d is null", i)
	}
	if i := slices.Index(result.Routes, nil); i >= 0 {
		return fmt.Errorf("route %d is null", i)
	}
	for i, ip := range result.IPs {
		if ip == nil {
			return fmt.Errorf("invalid IP configuration: address %d is null", i)
		}
		if n := len(result.Interfaces); ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= n) {
			return fmt.Errorf("invalid IP configuration: address %d is of interface %d of %d", i, *ip.Interface, n)
		}
	}
	return nil
}
