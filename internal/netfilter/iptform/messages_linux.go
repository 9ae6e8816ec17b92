package iptform

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/iptables/nftrules"
	"github.com/embedcni/cni/internal/nft"
)

// mostRestored is the number of commands in one transaction that restores rules. For each
// the kernel copies the chain that it changes, so that they should not be many. They take less
// than the 208 KiB of a usual socket.
const mostRestored = 300

// run runs the script by messages to the kernel, without a process. The tool runs it
// for the legacy variant, if a command is of a form that only the tool knows, and if the
// kernel refuses: then the tool's error says why. It does not run after a transaction
// whose outcome is unknown, because it would add the rules twice.
//
// A script that restores may take several transactions, between which the context can end
// it: the kernel does not end one that it has begun.
func (x maker) run(ctx context.Context, s iptables.Script) error {
	if x.Legacy || len(s) == 0 {
		return s.Run(ctx, x.Tool)
	}
	if parts := s.Parts(mostRestored); x.restores && len(parts) > 1 {
		return sequence(parts, func(part iptables.Script) error { return x.runPart(ctx, part) })
	}
	return x.runPart(ctx, s)
}

// runPart is run in one transaction.
func (x maker) runPart(ctx context.Context, s iptables.Script) error {
	var commands []nftrules.Command
	if known := s.Words(func(table, verb, chain string, rest []string) {
		commands = append(commands, nftrules.Command{Verb: verb, Rule: nftrules.Rule{ChainID: inTable(table, chain), Words: rest}})
	}); known {
		err := nftrules.Apply(ctx, x.Sockets, x.family(), commands)
		if err == nil || ctx.Err() != nil || errors.Is(err, nft.ErrUncertain) {
			return err
		}
		toolErr := s.Run(ctx, x.Tool)
		if errors.Is(toolErr, iptables.ErrNotFound) {
			return errors.Join(err, toolErr)
		}
		return toolErr
	}
	return s.Run(ctx, x.Tool)
}

// family is that of the nf_tables variant's tables.
func (x maker) family() uint8 { return x.Table(tableNAT).Family }

// askKernel writes the states of those rules that the kernel's listing of the nf_tables
// variant shows for certain, and returns the others.
func (x maker) askKernel(ctx context.Context, doubt []desiredRule, states map[string]state) (left []desiredRule, err error) {
	if x.Legacy || len(doubt) == 0 {
		return doubt, nil
	}
	rules := make([]nftrules.Rule, len(doubt))
	for i, r := range doubt {
		rules[i] = nftrules.Rule{ChainID: r.ChainID, Words: r.args}
	}
	var found []nftrules.State
	err = nft.UntilUnchanged(ctx, func() error {
		return x.Sockets.Do(ctx, func(c *nft.Conn) (err error) {
			found, err = nftrules.Look(c, x.family(), rules)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	for i, r := range doubt {
		switch found[i] {
		case nftrules.Present:
			states[r.key()] = present
		case nftrules.Absent:
			states[r.key()] = absent
		default:
			left = append(left, r)
		}
	}
	return left, nil
}
