package cni

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// enterHost has the plugins of the operation run where the record says that they
// ran, which is another namespace than the caller's when BuildKit's detached one,
// a rootless one or WithHostNetNS is in use. In the caller's they would find
// neither the rules nor the interfaces, or a neighbour's of the same address.
func (op *operation) enterHost(rec *record.Record) error {
	if rec.Host == "" || op.rebooted || rec.Host == op.host.String() {
		return nil
	}
	found, certain, err := op.hosts.Find(rec, op.hostNetNS)
	if err != nil {
		return fmt.Errorf("host network namespace of container %s: %w", op.id, err)
	}
	if found != nil {
		op.leaveHost()
		op.own, op.host = op.host, found
		return nil
	}
	// If the container's namespace is not found either, there is nothing alive
	// that a Remove by the caller could harm, and a container must be stoppable.
	if certain || op.asked && op.gone() {
		op.hostGone = true
		op.logger.Warn("the host network namespace of the container is gone, and with it the container's interfaces and rules",
			"container", op.id, "namespace", rec.Host, "path", rec.HostPath)
		return nil
	}
	return fmt.Errorf("container %s was attached from network namespace %s, which cannot be found from %s, where this call would run plugins; "+
		"call from there, or name it with WithHostNetNS: %w", op.id, described(rec.Host, rec.HostPath), described(op.host.String(), op.hosts.PathTo(op.host, op.hostNetNS)), ErrHostNetNS)
}

func described(id, path string) string {
	if path == "" {
		return id
	}
	return id + " (" + path + ")"
}

// leaveHost goes back to the namespace that the operation began in.
func (op *operation) leaveHost() {
	if op.own == nil {
		return
	}
	if err := op.host.Close(); err != nil {
		op.logger.Error("close network namespace", "container", op.id, "error", err)
	}
	op.host, op.own = op.own, nil
}

// sameHost refuses to add to a container that is attached from another host
// namespace: its record has one.
func (op *operation) sameHost() error {
	if op.rec == nil || op.rec.Host == "" || op.rec.Host == op.host.String() {
		return nil
	}
	return fmt.Errorf("container %s is attached from network namespace %s, and this call would run plugins in %s: %w",
		op.id, described(op.rec.Host, op.rec.HostPath), described(op.host.String(), op.hosts.PathTo(op.host, op.hostNetNS)), ErrHostNetNS)
}

// withoutHost is detach where the namespace that the plugins ran in is gone, and
// with it all that they had made there: nothing is asked to delete in the
// caller's, where the same names and addresses can be others'. What is on the
// disk is left to the sweep, so an error says which plugins may have more there
// than that knows of.
func (op *operation) withoutHost(attachments []*attachment) error {
	var errs []error
	for _, a := range attachments {
		for _, p := range a.network.config.Plugins {
			for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if k := known.Of(typ); typ == "" || k.IPAM || k.Swept && !a.described().IsCallers(typ) {
					continue
				}
				e := a.error("DEL", ErrHostNetNS)
				e.Plugin, e.Msg = typ, "not asked: the host network namespace that it ran in is gone; CleanUp forgets the attachment"
				errs = append(errs, e)
			}
		}
	}
	op.uncache(attachments)
	return join(errs...)
}

// isSkipped reports whether an error means that nothing can be said of the
// container from here, so that Recover and GC leave it as it is.
func isSkipped(err error) bool {
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrHostNetNS) ||
		errors.Is(err, errShared) || errors.As(err, new(*RecordError))
}
