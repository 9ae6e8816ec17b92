//go:build !linux

package audit

import (
	"context"

	"github.com/embedcni/cni"
)

func (a *auditor) kernel(context.Context, string) error { return cni.ErrNotSupported }
