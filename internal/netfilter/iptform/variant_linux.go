package iptform

import (
	"context"
	"encoding/json"
)

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
