package main

import "slices"

// kind is the way a contender attaches.
type kind string

const (
	kindGoCNI     kind = "go-cni"
	kindNetavark  kind = "netavark"
	kindOneLine   kind = "go-cni's user who changes one line"
	kindDisk      kind = "ours on disk"
	kindInProcess kind = "ours in process"
	kindFloor     kind = "floor"
)

// contender is one way to do the work. Backend is the packet filter backend of
// all its plugins. It is empty if there is none, or no choice.
type contender struct {
	Kind    kind
	Backend string `json:",omitempty"`
	// Memory puts the attachment record on a tmpfs, where a sync costs nothing.
	Memory bool `json:",omitempty"`
	// Each makes a runtime for each container, as schedulers do.
	Each bool `json:",omitempty"`
}

// String returns the contender's name in tables.
func (c contender) String() string {
	name := string(c.Kind)
	if c.Backend != "" {
		name += ", " + c.Backend
	}
	if c.Each {
		name += ", a runtime for each container"
	}
	if c.Memory {
		name += ", record in memory"
	}
	return name
}

// executes reports whether an ADD to a bridge starts programs. Such a contender
// takes too long to attach thousands of containers.
func (c contender) executes() bool { return c.Kind != kindFloor && c.Kind != kindInProcess }

// own reports whether the contender belongs to this module. Its failure is then
// a defect.
func (c contender) own() bool {
	return slices.Contains([]kind{kindOneLine, kindDisk, kindInProcess, kindFloor}, c.Kind)
}

// must reports whether the run is useless without the contender. The others are
// peers: a table can say why one is missing.
func (c contender) must() bool { return c.Kind != kindNetavark }

const (
	iptables = "iptables"
	nftables = "nftables"
	// native is this library's in-process backend if none is named: nftables
	// sets and maps, instead of rules like the reference plugins'.
	native = "nftables sets"
)

// The contenders that targets compare.
func oursPlain() contender  { return contender{Kind: kindInProcess} } // of work that names no backend
func oursEach() contender   { return contender{Kind: kindInProcess, Each: true} }
func goCNIPlain() contender { return contender{Kind: kindGoCNI} }
func oneLine() contender    { return contender{Kind: kindOneLine} }
func theFloor() contender   { return contender{Kind: kindFloor} }
func oursNFT() contender    { return contender{Kind: kindInProcess, Backend: native} }
func oursIPT() contender    { return contender{Kind: kindInProcess, Backend: iptables} }
func goCNINFT() contender   { return contender{Kind: kindGoCNI, Backend: nftables} }
func goCNIIPT() contender   { return contender{Kind: kindGoCNI, Backend: iptables} }

// everyNAT returns the contenders for work with packet filters.
func everyNAT() []contender {
	return []contender{
		goCNIIPT(), goCNINFT(), {Kind: kindNetavark},
		{Kind: kindDisk, Backend: iptables}, {Kind: kindDisk, Backend: nftables},
		oursIPT(), {Kind: kindInProcess, Backend: nftables}, oursNFT(), theFloor(),
	}
}

// everyDefault returns the contenders for the default conflist.
func everyDefault() []contender { return []contender{goCNIPlain(), oneLine(), oursPlain(), theFloor()} }

func plain() []contender { return []contender{goCNIPlain(), {Kind: kindDisk}, oursPlain(), theFloor()} }

func without(all []contender, kinds ...kind) []contender {
	return slices.DeleteFunc(all, func(c contender) bool { return slices.Contains(kinds, c.Kind) })
}
