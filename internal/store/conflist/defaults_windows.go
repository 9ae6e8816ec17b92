package conflist

// StateDir is the default directory of libcni's cache, and of records.
const StateDir = `C:\ProgramData\cni`
