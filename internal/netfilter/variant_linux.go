package netfilter

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/embedcni/cni/internal/iptables"
)

// OtherVariant returns an error if the rules of an attachment were made with
// another variant of iptables than the plain name means now. Executables use
// the plain name, and would not find the rules. If the attachment's record names no
// variant, OtherVariant returns nil.
func OtherVariant(ctx context.Context, record Notes) error {
	for _, family := range []string{"iptables", "ip6tables"} {
		fact := record.Fact(variantFact(family))
		if fact == nil {
			continue
		}
		var made variant
		if err := json.Unmarshal(fact, &made); err != nil {
			return fmt.Errorf("which variant of %s made the rules: %w", family, err)
		}
		now := iptables.Tool{Family: family}
		if err := now.Detect(ctx); err != nil {
			return err
		}
		if now.Legacy != made.Legacy {
			return fmt.Errorf("the rules were made with %s, and %s is %s now", iptables.Tool{Family: family, Legacy: made.Legacy}.Name(), family, now.Name())
		}
	}
	return nil
}

// variantFact is the key of the note that says which variant made the rules.
func variantFact(family string) string { return "netfilter/" + family }
