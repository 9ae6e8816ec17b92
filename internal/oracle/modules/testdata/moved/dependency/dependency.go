// Package dependency is a program's dependency that imports go-cni too.
package dependency

import cni "github.com/containerd/go-cni"

// Loaded returns a CNI with these options.
func Loaded(opts ...cni.Opt) (cni.CNI, error) { return cni.New(opts...) }
