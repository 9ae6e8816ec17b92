//go:build !linux

package main

import (
	"context"
	"runtime"
)

func start(context.Context, options) (int, error) {
	return 2, missing{"hosts that are namespaces need Linux, this is " + runtime.GOOS + ": run it in a Linux virtual machine"}
}
