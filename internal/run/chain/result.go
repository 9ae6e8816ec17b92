package chain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

// ResultError reports that a successful plugin returned an invalid result.
type ResultError struct {
	Plugin string // its type
	Err    error  // an ErrInvalidResult
}

func (e *ResultError) Error() string { return e.Err.Error() }
func (e *ResultError) Unwrap() error { return e.Err }

// shape has the result fields whose presence libcni and this library rely on.
// Other fields differ between versions; checking these makes every conversion
// safe.
type shape struct {
	CNIVersion string         `json:"cniVersion"`
	Interfaces []*struct{}    `json:"interfaces"`
	IPs        []*shapeIP     `json:"ips"`
	Routes     []*types.Route `json:"routes"`
}

type shapeIP struct {
	Interface *int        `json:"interface"`
	Address   types.IPNet `json:"address"`
}

// shape020 is shape for versions before 0.3.0.
type shape020 struct {
	IP4 *shapeIP020 `json:"ip4"`
	IP6 *shapeIP020 `json:"ip6"`
}

type shapeIP020 struct {
	IP     types.IPNet    `json:"ip"`
	Routes []*types.Route `json:"routes"`
}

// ValidateResult returns an ErrInvalidResult unless the output is a valid
// result. libcni checks little: it dereferences a null in a list, callers use an
// index past its end, and a missing address or destination is cached as "<nil>",
// which no DEL can read. A result without a version has configVersion.
func ValidateResult(out []byte, configVersion string) error {
	var s *shape
	if err := json.Unmarshal(out, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	if s == nil {
		return fmt.Errorf("%w: is null", ErrInvalidResult)
	}
	if s.CNIVersion != "" {
		if known := version.All.SupportedVersions(); !slices.Contains(known, s.CNIVersion) {
			return fmt.Errorf("%w: version %q is not known here (%s)", ErrInvalidResult, s.CNIVersion, strings.Join(known, ", "))
		}
		configVersion = s.CNIVersion
	}
	if current, err := version.GreaterThanOrEqualTo(configVersion, "0.3.0"); err == nil && !current {
		if err := validateResult020(out); err != nil {
			return err
		}
	}
	for i, intf := range s.Interfaces {
		if intf == nil {
			return fmt.Errorf("%w: interfaces[%d] is null", ErrInvalidResult, i)
		}
	}
	for i, ip := range s.IPs {
		if err := validateIP(ip, len(s.Interfaces)); err != nil {
			return fmt.Errorf("%w: ips[%d] %w", ErrInvalidResult, i, err)
		}
	}
	return validateRoutes("routes", s.Routes)
}

func validateResult020(out []byte) error {
	var s shape020
	if err := json.Unmarshal(out, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	for _, one := range []struct {
		key string
		ip  *shapeIP020
	}{{"ip4", s.IP4}, {"ip6", s.IP6}} {
		if one.ip == nil {
			continue
		}
		if len(one.ip.IP.IP) == 0 {
			return fmt.Errorf("%w: %s has no address", ErrInvalidResult, one.key)
		}
		if err := validateRoutes(one.key+".routes", one.ip.Routes); err != nil {
			return err
		}
	}
	return nil
}

func validateRoutes(key string, routes []*types.Route) error {
	for i, route := range routes {
		switch {
		case route == nil:
			return fmt.Errorf("%w: %s[%d] is null", ErrInvalidResult, key, i)
		case len(route.Dst.IP) == 0:
			return fmt.Errorf("%w: %s[%d] has no destination", ErrInvalidResult, key, i)
		}
	}
	return nil
}

func validateIP(ip *shapeIP, interfaces int) error {
	switch {
	case ip == nil:
		return errors.New("is null")
	case len(ip.Address.IP) == 0:
		return errors.New("has no address")
	case ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= interfaces):
		return fmt.Errorf("has interface index %d of %d interfaces", *ip.Interface, interfaces)
	}
	return nil
}

// withVersion adds the configuration's version to a result without one, as
// libcni does. A DEL gives the result back to the plugins.
func withVersion(out []byte, configVersion string) (json.RawMessage, error) {
	o, err := parseObject(out)
	if err != nil {
		return nil, err
	}
	raw, _ := o.get("cniVersion")
	var said string
	if err := json.Unmarshal(raw, &said); err == nil && said != "" {
		return out, nil
	}
	o.set("cniVersion", quoted(cmp.Or(configVersion, "0.1.0")))
	return o.bytes(), nil
}

// Decode reads a recorded result of any version. It returns nil if there is no
// usable one.
func Decode(data json.RawMessage) *types100.Result {
	result, err := decode(data)
	if err != nil || Walkable(result) != nil {
		return nil
	}
	return result
}

// Interfaces returns the interfaces that a recorded result lists, but for those that were
// in the result that the first plugin was given.
func Interfaces(result, given json.RawMessage) (all []*types100.Interface) {
	made, before := Decode(result), Decode(given)
	if made == nil {
		return nil
	}
	if before == nil {
		return made.Interfaces
	}
	return slices.DeleteFunc(slices.Clone(made.Interfaces), func(i *types100.Interface) bool {
		return slices.ContainsFunc(before.Interfaces, func(g *types100.Interface) bool { return g.Name == i.Name && g.Sandbox == i.Sandbox })
	})
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
	return decode(data)
}

// encodedPrefix begins a result of version 1.x as built-in plugins and the CNI project's
// library write it.
const encodedPrefix = `{"cniVersion":"1.`

// decode decodes a result. [create.CreateFromBytes] does that twice: first for the version.
func decode(data json.RawMessage) (*types100.Result, error) {
	if bytes.HasPrefix(data, []byte(encodedPrefix)) {
		if r, err := types100.NewResult(data); err == nil {
			return types100.NewResultFromResult(r)
		}
	}
	r, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// readResult validates a result, and returns it with its version, and decoded. The error
// is an ErrInvalidResult.
func readResult(data []byte, configVersion string) (versioned []byte, result types.Result, err error) {
	if err := ValidateResult(data, configVersion); err != nil {
		return nil, nil, err
	}
	if versioned, err = withVersion(data, configVersion); err == nil {
		result, err = create.CreateFromBytes(versioned)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return versioned, result, nil
}

// Previous returns a result of any version as the previous result for plugins of a
// configuration's version. The error is an ErrInvalidResult.
func Previous(result []byte, configVersion string) (prev Partial, err error) {
	err = guard(func() error {
		_, r, err := readResult(result, configVersion)
		if err != nil {
			return err
		}
		if r, err = r.GetAsVersion(cmp.Or(configVersion, "0.1.0")); err == nil {
			prev, err = json.Marshal(r)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidResult, err)
		}
		return nil
	})
	return prev, err
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
