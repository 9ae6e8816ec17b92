package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// definitions are the objects that hold configurations (Kubernetes Network Custom Resource
// Definition De-facto Standard, version 1.3, section 3).
var definitions = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// Configuration returns the NetworkAttachmentDefinition that an element of a pod's annotation
// names, for backend.Options.Lookup. One that is not in the cache is asked for. A definition
// without spec.config means a file on the node: see Options.File.
func (p *Pods) Configuration(ctx context.Context, r *server.Request, s multinet.Selection) (multinet.Definition, error) {
	var none multinet.Definition
	if p.networks == nil {
		return none, invalid("this daemon looks up no NetworkAttachmentDefinitions")
	}
	if allowed, err := p.allows(r, s); err != nil {
		return none, err
	} else if !allowed {
		return none, invalid("pods of namespace %q may not use the networks of namespace %q", r.Pod.Namespace, s.Namespace)
	}
	found, err := p.definition(ctx, s)
	if err != nil {
		return none, err
	}
	config, err := p.configuration(found, s)
	return multinet.Definition{Config: config, Resource: found.GetAnnotations()[multinet.ResourceAnnotation]}, err
}

// allows reports whether a pod may use a network, by the options and by what the request's
// configuration has of Multus.
func (p *Pods) allows(r *server.Request, s multinet.Selection) (bool, error) {
	if s.Open || s.Namespace == r.Pod.Namespace {
		return true, nil
	}
	c := struct {
		NamespaceIsolation bool
		GlobalNamespaces   string
	}{GlobalNamespaces: "default"} // Multus' default
	if len(r.Config) > 0 {
		if err := json.Unmarshal(r.Config, &c); err != nil {
			return false, invalid("%v", err)
		}
	}
	if p.isolated && !slices.Contains(p.global, s.Namespace) {
		return false, nil
	}
	global := strings.FieldsFunc(c.GlobalNamespaces, func(c rune) bool { return c == ',' || c == ' ' })
	return !c.NamespaceIsolation || slices.Contains(global, s.Namespace), nil
}

// definition returns the object that an element names.
func (p *Pods) definition(ctx context.Context, s multinet.Selection) (*unstructured.Unstructured, error) {
	found, err := persist(ctx, p.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
		if item, ok, err := p.configs.GetByKey(s.Network()); ok && err == nil {
			if found, ok := item.(*unstructured.Unstructured); ok {
				return found, nil
			}
		}
		return p.networks.Resource(definitions).Namespace(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, invalid("there is no NetworkAttachmentDefinition %s", s.Network())
	case err != nil:
		return nil, explained(err, "get", definitions.GroupResource().String(), s.Network())
	}
	return found, nil
}

// configuration returns the configuration of an object.
func (p *Pods) configuration(found *unstructured.Unstructured, s multinet.Selection) ([]byte, error) {
	config, _, err := unstructured.NestedString(found.Object, "spec", "config")
	switch {
	case err != nil:
		return nil, invalid("NetworkAttachmentDefinition %s: %v", s.Network(), err)
	case config == "" && p.file == nil:
		return nil, invalid("NetworkAttachmentDefinition %s has no spec.config, and this daemon reads no files for it", s.Network())
	case config == "":
		data, err := p.file(s.Name)
		if err != nil {
			return nil, invalid("NetworkAttachmentDefinition %s has no spec.config, and no file of this node has it: %v", s.Network(), err)
		}
		return data, nil
	}
	return []byte(config), nil
}

// invalid is the error for a network that a pod cannot have.
func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}
