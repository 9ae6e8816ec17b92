//go:build !linux

package refplugins

import (
	"context"
	"io"
)

func cached(context.Context, io.Writer) (string, error) { return "", ErrNotSupported }
