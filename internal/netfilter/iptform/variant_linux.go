package iptform

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/embedcni/cni/internal/iptables"
)

// OtherVariant returns an error if the rules of an attachment were made with
// another variant of iptables than the plain name means now. Executables use
// the plain name, and would not find the rules. If the attachment's record, which
// fact reads, names no variant, OtherVariant returns nil.
func OtherVariant(ctx context.Context, fact func(key string) json.RawMessage) error {
	for _, family := range []string{"iptables", "ip6tables"} {
		noted := fact(variantFact(family))
		if noted == nil {
			continue
		}
		var made variant
		if err := json.Unmarshal(noted, &made); err != nil {
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

// variant is a note in an attachment's record: the variant of iptables that made its
// rules.
type variant struct {
	Legacy bool `json:"legacy"`
}

// attachmentsMaker returns the variant that made the attachment's rules. If none has, it is
// the system's, which an ADD notes before it makes any: update-alternatives may
// change it in the life of a container.
func (f Form) attachmentsMaker(ctx context.Context, v6, add bool) (maker, error) {
	x, noted, err := f.notedMaker(v6)
	if noted || err != nil {
		return x, err
	}
	err = x.Detect(ctx)
	if err == nil && add {
		err = f.Note(variantFact(x.Family), variant{x.Legacy})
	}
	return x, err
}

// notedMaker returns the variant that the attachment's record names, if it does.
func (f Form) notedMaker(v6 bool) (x maker, noted bool, err error) {
	x = f.maker(v6, false)
	fact := f.Fact(variantFact(x.Family))
	if fact == nil {
		return x, false, nil
	}
	var made variant
	err = json.Unmarshal(fact, &made)
	x.Legacy = made.Legacy
	return x, true, err
}
