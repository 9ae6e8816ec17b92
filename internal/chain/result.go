package chain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
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
	o, err := objectOrEmpty(out)
	if err != nil {
		return nil, err
	}
	raw, _ := o.get("cniVersion")
	var said string
	if err := json.Unmarshal(raw, &said); err == nil && said != "" {
		return out, nil
	}
	quoted, err := json.Marshal(cmp.Or(configVersion, "0.1.0"))
	if err != nil {
		return nil, err
	}
	o.set("cniVersion", quoted)
	return o.bytes()
}
