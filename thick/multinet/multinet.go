// Package multinet reads and writes the annotations with which a pod of Kubernetes asks for
// networks beside the cluster's, and is told what it got (Kubernetes Network Custom
// Resource Definition De-facto Standard, version 1.3). It needs nothing of Kubernetes.
package multinet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"
)

const (
	// Annotation names the networks of a pod; see Parse.
	Annotation = "k8s.v1.cni.cncf.io/networks"
	// DefaultAnnotation names the network that a pod has instead of the default one; see
	// ParseDefault.
	DefaultAnnotation = "v1.multus-cni.io/default-network"
	// ResourceAnnotation is of a network: the resource whose devices it gives to pods.
	ResourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"
	// StatusAnnotation describes the attachments of a pod; see Statuses.
	StatusAnnotation = "k8s.v1.cni.cncf.io/network-status"
)

// Selection is an element of the annotation: a network, and what the pod wants of its
// attachment to it.
type Selection struct {
	Namespace string // of the network; the pod's unless the element names another
	Name      string // of the network, unique in Namespace
	Interface string // in the pod; empty leaves it to the runtime

	IPs []netip.Prefix // see HasLength; nil leaves the addresses to the network
	// HasLength has an entry for each of IPs: whether a prefix length was given. Without
	// one the prefix is a single address.
	HasLength []bool

	MAC            string // six bytes, as written
	InfinibandGUID string // eight bytes, as written
	PortMappings   []PortMapping
	Bandwidth      *Bandwidth
	// DefaultRoute are the gateways of the pod's default routes, at most one for each
	// family in a pod. If it is empty but not nil, those in the network's configuration are
	// wanted; if it is nil, the pod's default routes are not for this attachment.
	DefaultRoute []netip.Addr
	CNIArgs      map[string]json.RawMessage // for args.cni of the configuration
	DeviceID     string                     // Multus' key deviceID
	IPAMClaim    string                     // name of the object with the addresses; excludes IPs

	// Unknown are keys of the element that the standard does not have.
	Unknown []string
	// Open is set for a network that pods of every namespace may use, whatever isolates them.
	Open bool
}

// Definition is a network that a Selection names.
type Definition struct {
	Config []byte // a list of plugins or a single plugin
	// Resource is the value of ResourceAnnotation: an attachment needs a device of it. Empty
	// for most networks.
	Resource string
}

// String returns the network and the interface in the annotation's short form.
func (s Selection) String() string {
	text := s.Network()
	if s.Interface != "" {
		text += "@" + s.Interface
	}
	return text
}

// Network returns the name that the status has: namespace/name.
func (s Selection) Network() string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// AddressList returns IPs as they were written: with a prefix length if there was one.
func (s Selection) AddressList() (list []string) {
	for i, p := range s.IPs {
		if i < len(s.HasLength) && s.HasLength[i] {
			list = append(list, p.String())
		} else {
			list = append(list, p.Addr().String())
		}
	}
	return list
}

// PortMapping is a port of the host that is forwarded to the pod.
type PortMapping struct {
	HostPort      uint16
	ContainerPort uint16
	Protocol      string     // "tcp", "udp" or "sctp"
	HostIP        netip.Addr // invalid for every address of the host
}

// Bandwidth limits the traffic of an attachment, in bits each second, and bits.
type Bandwidth struct {
	IngressRate, IngressBurst uint64
	EgressRate, EgressBurst   uint64
}

// Error is an annotation that cannot be used. No network of it is then attached: a pod
// must not run with fewer networks than it asks for.
type Error struct {
	Annotation string // empty for Annotation
	Index      int    // of the element, from 0; -1 if the error is about no element
	Key        string // of the element, such as "mac"; empty if the error is about no key
	Err        error
}

// Error names the element and the key.
func (e *Error) Error() string {
	text := "annotation " + cmp.Or(e.Annotation, Annotation)
	if e.Index >= 0 {
		text += fmt.Sprintf(": network %d", e.Index)
	}
	if e.Key != "" {
		text += ": " + e.Key
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reasons of an Error, for errors.Is. Others are in its text alone.
var (
	// ErrInterfaceTwice: two networks want one interface name.
	ErrInterfaceTwice = errors.New("another network wants that interface")
	// ErrDefaultRouteTwice: two gateways are wanted for the default route of one family.
	ErrDefaultRouteTwice = errors.New("another network or gateway has the default route")
	// ErrTwoSources: addresses are given, and an IPAM claim has some.
	ErrTwoSources = errors.New("addresses and an IPAM claim exclude each other")
)

// Parse reads the value of Annotation in either form:
//
//	storage, ns/backup@net7
//	[{"name": "storage", "namespace": "ns", "interface": "net7", "ips": ["10.1.0.5/24"]}]
//
// namespace is the pod's, for networks without one. The value is checked as a whole, and
// the error is an *Error. Keys that the specification does not have are left alone. They
// are in Unknown. Parse returns nil for a value of white space.
func Parse(value, namespace string) ([]Selection, error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	parse := parseNames
	if strings.ContainsAny(value, `[{"`) { // which no name has
		parse = parseJSON
	}
	all, err := parse(value)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Namespace == "" {
			all[i].Namespace = namespace
		}
	}
	if err := checkTogether(all); err != nil {
		return nil, err
	}
	return all, nil
}

// ParseDefault reads the value of DefaultAnnotation: one network in either form. namespace is
// for a network without one. The error is an *Error.
func ParseDefault(value, namespace string) (s Selection, err error) {
	all, err := Parse(value, namespace)
	if err == nil && len(all) != 1 {
		err = &Error{Index: -1, Err: fmt.Errorf("%d networks, and a pod has one default network", len(all))}
	}
	if wrong := (*Error)(nil); errors.As(err, &wrong) {
		wrong.Annotation = DefaultAnnotation
		return s, wrong
	}
	return all[0], err
}

// parseNames reads the short form.
func parseNames(value string) (all []Selection, err error) {
	for i, item := range strings.Split(value, ",") {
		s, err := parseName(strings.TrimSpace(item))
		if err != nil {
			return nil, &Error{Index: i, Err: err}
		}
		all = append(all, s)
	}
	return all, nil
}

func parseName(item string) (s Selection, err error) {
	name := item
	if namespace, rest, ok := strings.Cut(item, "/"); ok {
		s.Namespace, name = strings.TrimSpace(namespace), rest
		if s.Namespace == "" || !isLabel(s.Namespace) {
			return s, fmt.Errorf("%q: namespace %q is not a DNS label (RFC 1123)", item, s.Namespace)
		}
	}
	name, ifName, ok := strings.Cut(name, "@")
	if s.Name = strings.TrimSpace(name); !isLabel(s.Name) {
		return s, fmt.Errorf("%q: network %q is not a DNS label (RFC 1123)", item, s.Name)
	}
	s.Interface = strings.TrimSpace(ifName)
	switch {
	case strings.Contains(ifName, "@"):
		err = fmt.Errorf("%q: more than one @", item)
	case ok:
		err = checkInterface(s.Interface)
	}
	return s, err
}

// isLabel reports whether a name is a DNS label of Kubernetes: lower-case letters, digits
// and inner hyphens.
func isLabel(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	return name != "" && len(name) <= 63 && strings.Trim(name, letters) == "" &&
		name[0] != '-' && name[len(name)-1] != '-'
}

// isSubdomain reports whether a name is one of an object in Kubernetes: labels with dots
// between them.
func isSubdomain(name string) bool {
	for _, label := range strings.Split(name, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return len(name) <= 253
}

// checkInterface checks an interface name as the library does.
func checkInterface(name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil {
		return fmt.Errorf("interface name %q: %w", name, err)
	}
	if strings.ContainsAny(name, "%\x00") { // the kernel replaces %d by a number
		return fmt.Errorf("interface name %q: it has a %% or a NUL", name)
	}
	return nil
}

// checkTogether refuses elements that contradict each other.
func checkTogether(all []Selection) error {
	names, families := map[string]bool{}, map[bool]bool{}
	for i, s := range all {
		if s.Interface != "" && names[s.Interface] {
			return &Error{Index: i, Key: "interface", Err: fmt.Errorf("%q: %w", s.Interface, ErrInterfaceTwice)}
		}
		names[s.Interface] = true
		for _, gateway := range s.DefaultRoute {
			if families[gateway.Is4()] {
				return &Error{Index: i, Key: "default-route", Err: fmt.Errorf("%v: %w", gateway, ErrDefaultRouteTwice)}
			}
			families[gateway.Is4()] = true
		}
	}
	return nil
}
