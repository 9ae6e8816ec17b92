package main

// spec is the input of a worker: one contender on its own host.
type spec struct {
	Contender contender
	Work      work
	Dir       string // the host's state, on the measured file system
	RunDir    string // the host's run-time state, on a tmpfs
	Plugins   string // the reference plugins' directory
}

// order is one task for a worker.
type order struct {
	Verb    string // add, check, del, pair, snapshot
	First   int    // the containers First to First+Count-1
	Count   int
	AtOnce  int
	Network int // or eachItsOwn
}

// eachItsOwn selects a network by the container's number, so that networks fill
// up one after the other.
const eachItsOwn = -1

// reply is the outcome of an order. Durations are in microseconds.
type reply struct {
	Err    string  `json:",omitempty"`
	Took   []int64 `json:",omitempty"` // one for each container
	Wall   int64   `json:",omitempty"` // from the begin of the first to the end of the last
	Allocs uint64  `json:",omitempty"` // total
	Bytes  uint64  `json:",omitempty"`
	// CPU is the processor time of the worker and the programs that it started, in
	// total. Work that the kernel puts off is not in it.
	CPU int64 `json:",omitempty"`
	// Resident is the worker's memory at the end, in bytes.
	Resident int64    `json:",omitempty"`
	Lines    []string `json:",omitempty"` // of a snapshot
	// Pairs are go-cni's and this library's calls of a pairing, by verb.
	Pairs map[string][][2]usage `json:",omitempty"`
}
