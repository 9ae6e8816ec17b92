package cni

import (
	"context"

	"github.com/embedcni/cni/internal/sweep"
)

// rules are the firewall's rules of the attachment.
func (f *footprint) rules(ctx context.Context) ([]sweep.Item, error) { return nil, nil }
