package cni

import "sync"

// CNIOpt is Opt.
//
// Deprecated: use Opt.
type CNIOpt = Opt

// CNIResult is Result.
//
// Deprecated: use Result.
type CNIResult = Result

// RWMutex is sync.RWMutex. go-cni exports it by accident.
//
// Deprecated: use sync.RWMutex.
type RWMutex = sync.RWMutex
