package cni

// Where configurations and plugins are looked for unless an option says
// otherwise.
const (
	DefaultNetDir = `C:\Program Files\containerd\cni\conf`
	DefaultCNIDir = `C:\Program Files\containerd\cni\bin`

	defaultStateDir = `C:\ProgramData\cni`
)
