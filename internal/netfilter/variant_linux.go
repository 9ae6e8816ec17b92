package netfilter

import (
	"context"

	"github.com/embedcni/cni/internal/netfilter/iptform"
)

// OtherVariant returns an error if the rules of an attachment were made with
// another variant of iptables than the plain name means now. Executables use
// the plain name, and would not find the rules. If the attachment's record names no
// variant, OtherVariant returns nil.
func OtherVariant(ctx context.Context, record Notes) error {
	return iptform.OtherVariant(ctx, record.Fact)
}
