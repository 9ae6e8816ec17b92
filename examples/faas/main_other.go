//go:build !linux

package main

import (
	"context"
	"errors"
	"runtime"
)

func start(context.Context) (int, error) {
	return 1, errors.New("containerd's tasks need Linux, this is " + runtime.GOOS + ": run it in a Linux virtual machine")
}
