package cni

import (
	"sync"

	"github.com/embedcni/cni"
)

const (
	CNIPluginName        = cni.CNIPluginName
	DefaultMaxConfNum    = cni.DefaultMaxConfNum
	DefaultPrefix        = cni.DefaultPrefix
	DefaultNetDir        = cni.DefaultNetDir
	DefaultCNIDir        = cni.DefaultCNIDir
	VendorCNIDirTemplate = cni.VendorCNIDirTemplate
)

type (
	CNI             = cni.CNI
	Opt             = cni.Opt
	NamespaceOpts   = cni.NamespaceOpts
	Namespace       = cni.Namespace
	Network         = cni.Network
	Result          = cni.Result
	Config          = cni.Config
	IPConfig        = cni.IPConfig
	ConfigResult    = cni.ConfigResult
	ConfNetwork     = cni.ConfNetwork
	NetworkConfList = cni.NetworkConfList
	NetworkConf     = cni.NetworkConf
	PortMapping     = cni.PortMapping
	IPRanges        = cni.IPRanges
	BandWidth       = cni.BandWidth
	DNS             = cni.DNS

	// Deprecated: use sync.RWMutex.
	RWMutex = sync.RWMutex
	// Deprecated: use Opt.
	CNIOpt = cni.Opt
	// Deprecated: use Result.
	CNIResult = cni.Result
)

var (
	ErrCNINotInitialized = cni.ErrCNINotInitialized
	ErrInvalidConfig     = cni.ErrInvalidConfig
	ErrNotFound          = cni.ErrNotFound
	ErrRead              = cni.ErrRead
	ErrInvalidResult     = cni.ErrInvalidResult
	ErrLoad              = cni.ErrLoad
)

// The parameter of an Opt has a type that no other package can name. So these three options
// are variables here.
var (
	WithLoNetwork   Opt = cni.WithLoNetwork
	WithDefaultConf Opt = cni.WithDefaultConf
	WithAllConf     Opt = cni.WithAllConf
)

// New returns a *cni.Runtime of embedcni.
func New(config ...Opt) (CNI, error) {
	r, err := cni.New(config...)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func IsCNINotInitialized(err error) bool { return cni.IsCNINotInitialized(err) }
func IsInvalidConfig(err error) bool     { return cni.IsInvalidConfig(err) }
func IsInvalidResult(err error) bool     { return cni.IsInvalidResult(err) }
func IsNotFound(err error) bool          { return cni.IsNotFound(err) }
func IsReadFailure(err error) bool       { return cni.IsReadFailure(err) }

func WithInterfacePrefix(prefix string) Opt     { return cni.WithInterfacePrefix(prefix) }
func WithPluginDir(dirs []string) Opt           { return cni.WithPluginDir(dirs) }
func WithPluginConfDir(dir string) Opt          { return cni.WithPluginConfDir(dir) }
func WithPluginMaxConfNum(maxConfigs int) Opt   { return cni.WithPluginMaxConfNum(maxConfigs) }
func WithMinNetworkCount(count int) Opt         { return cni.WithMinNetworkCount(count) }
func WithConf(bytes []byte) Opt                 { return cni.WithConf(bytes) }
func WithConfIndex(bytes []byte, index int) Opt { return cni.WithConfIndex(bytes, index) }
func WithConfFile(fileName string) Opt          { return cni.WithConfFile(fileName) }
func WithConfListBytes(bytes []byte) Opt        { return cni.WithConfListBytes(bytes) }
func WithConfListFile(fileName string) Opt      { return cni.WithConfListFile(fileName) }

func WithLabels(labels map[string]string) NamespaceOpts { return cni.WithLabels(labels) }
func WithArgs(k, v string) NamespaceOpts                { return cni.WithArgs(k, v) }

func WithCapability(name string, capability any) NamespaceOpts {
	return cni.WithCapability(name, capability)
}

func WithCapabilityPortMap(portMapping []PortMapping) NamespaceOpts {
	return cni.WithCapabilityPortMap(portMapping)
}

func WithCapabilityIPRanges(ipRanges []IPRanges) NamespaceOpts {
	return cni.WithCapabilityIPRanges(ipRanges)
}

func WithCapabilityBandWidth(bandWidth BandWidth) NamespaceOpts {
	return cni.WithCapabilityBandWidth(bandWidth)
}

func WithCapabilityDNS(dns DNS) NamespaceOpts { return cni.WithCapabilityDNS(dns) }

func WithCapabilityCgroupPath(cgroupPath string) NamespaceOpts {
	return cni.WithCapabilityCgroupPath(cgroupPath)
}
