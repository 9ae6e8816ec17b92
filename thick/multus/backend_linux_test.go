package multus

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// startOurs has this library's daemon serve Multus' socket until the test ends: a Runtime
// behind package backend. primary is the file of the network that every pod gets, and bin the
// directory of the plugins.
func startOurs(t *testing.T, o backend.Options, primary, bin string) {
	t.Helper()
	network := expect.Value(os.ReadFile(primary))(t)
	runtime := expect.Value(cni.New(cni.WithStateDir(t.TempDir()), cni.WithOwner("multus"), cni.WithPluginDir([]string{bin}),
		cni.WithConfListBytes(network)))(t)
	serve(t, backend.New(runtime, o))
	t.Cleanup(func() {
		left, err := runtime.Attachments()
		if err == nil && len(left) > 0 { // of a test that failed
			_, err = runtime.GC(context.Background(), cni.GCOptions{KeepNone: true})
		}
		expect.NoError(t, err)
	})
}

// options has this library's daemon use the cluster as Multus' does. It needs no requests for
// that: the test has the objects.
func (c *cluster) options() backend.Options {
	annotation := func(name string) func(context.Context, *server.Request) (string, error) {
		return func(_ context.Context, r *server.Request) (string, error) {
			_, annotations, err := c.found(kubeapi.Pod, r.Pod.Namespace, r.Pod.Name)
			value, _ := annotations[name].(string)
			return value, err
		}
	}
	return backend.Options{
		Networks: annotation(multinet.Annotation), DefaultNetwork: annotation(multinet.DefaultAnnotation),
		Lookup: func(_ context.Context, _ *server.Request, s multinet.Selection) (multinet.Definition, error) {
			network, annotations, err := c.found(kubeapi.Definition, s.Namespace, s.Name)
			if err != nil {
				return multinet.Definition{}, err
			}
			config, _ := network["spec"].(object)["config"].(string)
			resource, _ := annotations[multinet.ResourceAnnotation].(string)
			return multinet.Definition{Config: []byte(config), Resource: resource}, nil
		},
		OnStatus: func(_ context.Context, r *server.Request, value string) error {
			_, _, err := c.found(kubeapi.Pod, r.Pod.Namespace, r.Pod.Name)
			if err == nil {
				c.addPod(object{multinet.StatusAnnotation: value})
			}
			return err
		},
	}
}

// references returns the directory of the reference plugins.
func references(t *testing.T) string {
	t.Helper()
	return expect.Value(refplugins.Dir(context.Background(), io.Discard))(t)
}
