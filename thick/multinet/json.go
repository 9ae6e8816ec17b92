package multinet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// element is an element of the annotation as JSON. Its values are checked afterwards, one
// by one, so that an error names the key.
type element struct {
	Name           string                     `json:"name"`
	Namespace      string                     `json:"namespace"`
	Interface      string                     `json:"interface"`
	OldInterface   string                     `json:"interfaceRequest"` // Multus before v3.2, which Multus still reads
	IPs            []string                   `json:"ips"`
	MAC            string                     `json:"mac"`
	InfinibandGUID string                     `json:"infiniband-guid"`
	PortMappings   []*portMapping             `json:"portMappings"`
	Bandwidth      *bandwidth                 `json:"bandwidth"`
	DefaultRoute   []string                   `json:"default-route"`
	CNIArgs        map[string]json.RawMessage `json:"cni-args"`
	DeviceID       string                     `json:"deviceID"`
	IPAMClaim      string                     `json:"ipam-claim-reference"`
}

type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// parseJSON reads the long form.
func parseJSON(value string) (all []Selection, err error) {
	var elements []json.RawMessage
	if err := json.Unmarshal([]byte(value), &elements); err != nil {
		return nil, &Error{Index: -1, Err: err}
	}
	for i, raw := range elements {
		s, err := parseElement(raw)
		if err != nil {
			err.Index = i
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func parseElement(raw json.RawMessage) (s Selection, _ *Error) {
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return s, &Error{Err: errors.New("not an object")}
	}
	var e element
	if err := json.Unmarshal(raw, &e); err != nil {
		key := ""
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			key, _, _ = strings.Cut(wrong.Field, ".")
		}
		return s, &Error{Key: key, Err: err}
	}
	s = Selection{
		Namespace: e.Namespace, Name: e.Name, Interface: cmp.Or(e.Interface, e.OldInterface),
		Unknown: unknownKeys(raw), MAC: e.MAC, InfinibandGUID: e.InfinibandGUID, CNIArgs: e.CNIArgs, DeviceID: e.DeviceID, IPAMClaim: e.IPAMClaim,
	}
	for _, step := range []struct {
		key   string
		check func() error
	}{
		{"name", func() error { return required(e.Name) }},
		{"namespace", func() error { return ifSet(e.Namespace, checkNamespace) }},
		{"interface", func() error { return ifSet(s.Interface, checkInterface) }},
		{"ips", func() error { return s.setIPs(e.IPs, e.IPAMClaim) }},
		{"mac", func() error { return ifSet(e.MAC, hardwareAddress(6)) }},
		{"infiniband-guid", func() error { return ifSet(e.InfinibandGUID, hardwareAddress(8)) }},
		{"portMappings", func() error { return s.setPorts(e.PortMappings) }},
		{"default-route", func() error { return s.setDefaultRoute(e.DefaultRoute) }},
	} {
		if err := step.check(); err != nil {
			return s, &Error{Key: step.key, Err: err}
		}
	}
	if b := e.Bandwidth; b != nil {
		limits := Bandwidth(*b)
		s.Bandwidth = &limits
	}
	return s, nil
}

// unknownKeys returns the keys of an object that element does not have. Their case does not
// matter, as for encoding/json.
func unknownKeys(raw json.RawMessage) (unknown []string) {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal(raw, &keys) // it is an object
	known := reflect.TypeFor[element]()
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		_, has := known.FieldByNameFunc(func(name string) bool {
			field, _ := known.FieldByName(name)
			return strings.EqualFold(field.Tag.Get("json"), key)
		})
		if !has {
			unknown = append(unknown, key)
		}
	}
	return unknown
}

func required(name string) error {
	if !isSubdomain(name) {
		return fmt.Errorf("%q is not the name of an object (RFC 1123)", name)
	}
	return nil
}

func checkNamespace(name string) error {
	if !isLabel(name) {
		return fmt.Errorf("%q is not a DNS label (RFC 1123)", name)
	}
	return nil
}

func ifSet(value string, check func(string) error) error {
	if value == "" {
		return nil
	}
	return check(value)
}

func hardwareAddress(size int) func(string) error {
	return func(value string) error {
		addr, err := net.ParseMAC(value)
		if err == nil && len(addr) != size {
			err = fmt.Errorf("%q has %d bytes, not %d", value, len(addr), size)
		}
		return err
	}
}

func (s *Selection) setIPs(list []string, claim string) error {
	if len(list) > 0 && claim != "" {
		return ErrTwoSources
	}
	for _, text := range list {
		if !strings.Contains(text, "/") {
			addr, err := parseAddr(text)
			if err != nil {
				return err
			}
			s.IPs, s.HasLength = append(s.IPs, netip.PrefixFrom(addr, addr.BitLen())), append(s.HasLength, false)
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		s.IPs, s.HasLength = append(s.IPs, prefix), append(s.HasLength, true)
	}
	return nil
}

// parseAddr reads an address. A zone names an interface of this host, and means nothing in
// a pod.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil && addr.Zone() != "" {
		err = fmt.Errorf("%q has a zone", text)
	}
	return addr, err
}

func (s *Selection) setPorts(list []*portMapping) error {
	for i, p := range list {
		if p == nil {
			return fmt.Errorf("entry %d is null", i)
		}
		for _, port := range []int{p.HostPort, p.ContainerPort} {
			if port < 1 || port > 65535 {
				return fmt.Errorf("entry %d: port %d is not of 1 to 65535", i, port)
			}
		}
		m := PortMapping{HostPort: uint16(p.HostPort), ContainerPort: uint16(p.ContainerPort), Protocol: strings.ToLower(cmp.Or(p.Protocol, "tcp"))}
		switch m.Protocol {
		case "tcp", "udp", "sctp":
		default:
			return fmt.Errorf("entry %d: protocol %q is none of tcp, udp and sctp", i, p.Protocol)
		}
		if p.HostIP != "" {
			var err error
			if m.HostIP, err = parseAddr(p.HostIP); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
		}
		s.PortMappings = append(s.PortMappings, m)
	}
	return nil
}

func (s *Selection) setDefaultRoute(list []string) error {
	if list == nil {
		return nil
	}
	s.DefaultRoute = []netip.Addr{}
	for _, text := range list {
		addr, err := parseAddr(text)
		if err != nil {
			return err
		}
		if addr.IsUnspecified() {
			return fmt.Errorf("%q is not a gateway", text)
		}
		s.DefaultRoute = append(s.DefaultRoute, addr.Unmap())
	}
	return nil
}
