package wire

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// The verbs: values of CNI_COMMAND (CNI specification 1.1.0, section 2).
const (
	Add     = "ADD"
	Del     = "DEL"
	Check   = "CHECK"
	GC      = "GC"
	Status  = "STATUS"
	Version = "VERSION"
)

// DefaultIfName is the interface of a request without CNI_IFNAME, as Multus' daemon has it.
const DefaultIfName = "eth0"

// Args are the checked parameters of a CNI call (CNI specification 1.1.0, section 2).
type Args struct {
	Command string
	// The next five are empty for GC, STATUS and VERSION, which are about no container.
	ContainerID string
	NetNS       string // an absolute path; empty only for DEL
	IfName      string
	Args        map[string]string // CNI_ARGS; nil without any
	Pod         Pod               // of Args
	Path        []string          // CNI_PATH, as the client sent it
}

// Pod is what a Kubernetes runtime says about the pod in CNI_ARGS.
type Pod struct {
	Namespace        string // K8S_POD_NAMESPACE
	Name             string // K8S_POD_NAME
	InfraContainerID string // K8S_POD_INFRA_CONTAINER_ID
	UID              string // K8S_POD_UID; older runtimes do not send it
}

// Rules say which variables a caller must set, beyond the specification.
type Rules struct {
	// IfName stands in for a missing CNI_IFNAME; empty refuses one.
	IfName string
	// Kubernetes requires the namespace and the name of a pod for ADD, DEL and CHECK.
	Kubernetes bool
}

// Parse checks the variables of a call. Its error has code 4, "invalid necessary
// environment variables", or the code that upstream's checks give. A variable that is
// empty is missing, as plugins have it.
func (r Rules) Parse(env map[string]string) (*Args, *types.Error) {
	a := &Args{Command: env["CNI_COMMAND"]}
	switch a.Command {
	case Add, Del, Check:
	case GC, Status:
		a.Path = filepath.SplitList(env["CNI_PATH"])
		return a, nil
	case Version:
		return a, nil
	case "":
		return nil, missing("CNI_COMMAND")
	default:
		return nil, invalid("CNI_COMMAND", "unknown verb %q", a.Command)
	}
	a.ContainerID, a.NetNS, a.IfName = env["CNI_CONTAINERID"], env["CNI_NETNS"], env["CNI_IFNAME"]
	if a.IfName == "" {
		a.IfName = r.IfName
	}
	if err := a.attachment(); err != nil {
		return nil, err
	}
	a.Path = filepath.SplitList(env["CNI_PATH"])
	var err *types.Error
	if a.Args, err = parseArgs(env["CNI_ARGS"]); err != nil {
		return nil, err
	}
	a.Pod = podOf(a.Args)
	if r.Kubernetes {
		if len(a.Args) == 0 {
			return nil, missing("CNI_ARGS")
		}
		if err := a.Pod.check(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// attachment checks the variables that name an attachment.
func (a *Args) attachment() *types.Error {
	var lacks []string
	for _, v := range []struct {
		name, value string
		optional    bool
	}{
		{"CNI_CONTAINERID", a.ContainerID, false},
		{"CNI_NETNS", a.NetNS, a.Command == Del},
		{"CNI_IFNAME", a.IfName, false},
	} {
		if v.value == "" && !v.optional {
			lacks = append(lacks, v.name)
		}
	}
	if len(lacks) > 0 {
		return missing(lacks...)
	}
	if err := utils.ValidateContainerID(a.ContainerID); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return err
	}
	if strings.Contains(a.IfName, "\x00") {
		return invalid("CNI_IFNAME", "%q has a NUL", a.IfName)
	}
	if a.NetNS != "" && (!path.IsAbs(a.NetNS) || strings.Contains(a.NetNS, "\x00")) {
		// The daemon's working directory is not the caller's.
		return invalid("CNI_NETNS", "%q is not an absolute path", a.NetNS)
	}
	return nil
}

// parseArgs reads pairs as FOO=BAR;ABC=123. A key that occurs twice is refused, because
// plugins disagree on which value counts.
func parseArgs(list string) (map[string]string, *types.Error) {
	if list == "" {
		return nil, nil
	}
	if strings.ContainsAny(list, "\n\r\x00") {
		return nil, invalid("CNI_ARGS", "%q has a line break or a NUL", list)
	}
	args := map[string]string{}
	for _, pair := range strings.Split(list, ";") {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || key == "" || strings.Contains(value, "="):
			return nil, invalid("CNI_ARGS", "%q is not of the form KEY=VALUE", pair)
		case strings.ContainsAny(key, " \t"):
			return nil, invalid("CNI_ARGS", "the key %q has a blank", key)
		}
		if _, twice := args[key]; twice {
			return nil, invalid("CNI_ARGS", "%q occurs twice", key)
		}
		args[key] = value
	}
	return args, nil
}

// The keys of a pod in CNI_ARGS.
const (
	argPodNamespace = "K8S_POD_NAMESPACE"
	argPodName      = "K8S_POD_NAME"
	argPodInfra     = "K8S_POD_INFRA_CONTAINER_ID"
	argPodUID       = "K8S_POD_UID"
)

func podOf(args map[string]string) Pod {
	return Pod{
		Namespace: args[argPodNamespace], Name: args[argPodName],
		InfraContainerID: args[argPodInfra], UID: args[argPodUID],
	}
}

// check requires the names, in the form that Kubernetes gives them. They may end up in
// paths and in requests to its API.
func (p Pod) check() *types.Error {
	var lacks []string
	for _, v := range [][2]string{{argPodNamespace, p.Namespace}, {argPodName, p.Name}} {
		if v[1] == "" {
			lacks = append(lacks, v[0])
		} else if !dnsSubdomain(v[1]) {
			return invalid("CNI_ARGS", "%s %q is not a name of Kubernetes", v[0], v[1])
		}
	}
	if len(lacks) > 0 {
		return missing(lacks...)
	}
	for _, v := range [][2]string{{argPodInfra, p.InfraContainerID}, {argPodUID, p.UID}} {
		if strings.ContainsAny(v[1], "/ \t") || len(v[1]) > longestName {
			return invalid("CNI_ARGS", "%s %q is not an identifier", v[0], v[1])
		}
	}
	return nil
}

// longestName is the length of the longest DNS name (RFC 1123, section 2.1).
const longestName = 253

// dnsSubdomain reports whether Kubernetes accepts a name as a DNS subdomain: labels of
// lower-case letters, digits and inner hyphens, separated by dots.
func dnsSubdomain(name string) bool {
	if len(name) > longestName {
		return false
	}
	for _, label := range strings.Split(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}

func missing(names ...string) *types.Error {
	return types.NewError(types.ErrInvalidEnvironmentVariables,
		fmt.Sprintf("required env variables [%s] missing", strings.Join(names, ",")), "")
}

func invalid(name, format string, args ...any) *types.Error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid "+name, fmt.Sprintf(format, args...))
}
