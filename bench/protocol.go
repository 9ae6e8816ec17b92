package main

// spec is what a worker is started with: one contender on a host of its own.
type spec struct {
	Contender contender
	Work      work
	Dir       string // the host's state, on the file system that is measured
	RunDir    string // the host's state that a reboot takes, on a tmpfs
	Plugins   string // the reference plugins' directory
}

// order is one thing for a worker to do.
type order struct {
	Verb    string // add, del, snapshot
	First   int    // the containers First to First+Count-1
	Count   int
	AtOnce  int
	Network int // or eachItsOwn
}

// eachItsOwn is the network of containers that fill one after the other.
const eachItsOwn = -1

// reply is what came of it. Durations are in microseconds.
type reply struct {
	Err    string   `json:",omitempty"`
	Took   []int64  `json:",omitempty"` // one each
	Wall   int64    `json:",omitempty"` // from the first one's begin to the last one's end
	Allocs uint64   `json:",omitempty"` // of all
	Bytes  uint64   `json:",omitempty"`
	Lines  []string `json:",omitempty"` // of a snapshot
}
