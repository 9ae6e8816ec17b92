package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/embedcni/cni/thick/server"
)

const (
	// DefaultSocket is where the kubelet listens.
	DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	// answerWithin and longestAnswer are Multus' limits. An answer has all pods of the node.
	answerWithin  = 10 * time.Second
	longestAnswer = 16 << 20
)

// Devices are the devices that a kubelet has given to pods. Its methods are safe for concurrent
// use.
type Devices struct {
	// Socket is the path of the kubelet's socket; empty for DefaultSocket.
	Socket string
}

// IDs returns the devices of the request's pod by their resource, or by the name of the claim
// for dynamic resources, sorted. The error is a *types.Error with code 11, "try again later".
func (d Devices) IDs(ctx context.Context, r *server.Request) (map[string][]string, error) {
	path := cmp.Or(d.Socket, DefaultSocket)
	pods, err := list(ctx, path)
	if err != nil {
		details := ""
		if errors.Is(err, fs.ErrNotExist) {
			details = "a daemon in a container needs the directory of the socket from its host"
		}
		return nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("ask the kubelet at %s for the devices of pods: %v", path, err), details)
	}
	found := map[string][]string{}
	for _, pod := range pods {
		if pod.GetName() != r.Pod.Name || pod.GetNamespace() != r.Pod.Namespace {
			continue
		}
		for _, c := range pod.GetContainers() {
			if err := collect(found, c); err != nil {
				return nil, fmt.Errorf("answer of the kubelet: %w", err)
			}
		}
	}
	for resource, ids := range found {
		slices.Sort(ids)
		found[resource] = slices.Compact(ids) // containers may share a claim
	}
	return found, nil
}

// list returns the resources of all pods.
func list(ctx context.Context, path string) ([]*podresources.PodResources, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(longestAnswer)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	return answer.GetPodResources(), err
}

// claim is a dynamic resource. The Go name of the devices differs between versions of the
// kubelet's module; the JSON name does not.
type claim struct {
	Name      string `json:"claim_name"`
	Resources []struct {
		Devices []struct {
			Name string `json:"name"` // vendor/class=device
		} `json:"cdi_devices"`
	} `json:"claim_resources"`
}

// collect adds the devices of a container.
func collect(found map[string][]string, c *podresources.ContainerResources) error {
	for _, devices := range c.GetDevices() {
		found[devices.GetResourceName()] = append(found[devices.GetResourceName()], devices.GetDeviceIds()...)
	}
	text, err := json.Marshal(c.GetDynamicResources())
	if err != nil {
		return err
	}
	var claims []claim
	if err := json.Unmarshal(text, &claims); err != nil {
		return err
	}
	for _, claim := range claims {
		for _, resource := range claim.Resources {
			for _, device := range resource.Devices {
				if _, id, ok := strings.Cut(device.Name, "="); ok {
					found[claim.Name] = append(found[claim.Name], id)
				}
			}
		}
	}
	return nil
}

// Publish prepares the file of an attachment with a device.
func (Devices) Publish(resource, id, attachment string) (string, error) {
	file := utils.GetCNIDeviceInfoPath(attachment)
	// The library would make the directory with no permissions.
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	if err := utils.CleanDeviceInfoForCNI(file); err != nil { // of an attempt that was killed
		return "", err
	}
	if resource == "" {
		return file, nil
	}
	err := utils.CopyDeviceInfoForCNIFromDP(file, resource, id)
	if errors.Is(err, fs.ErrNotExist) { // the device plugin describes none
		err = nil
	}
	return file, err
}

// Info returns the content of the file of an attachment, or nil if it does not exist.
func (Devices) Info(file string) (json.RawMessage, error) {
	info, err := utils.LoadDeviceInfoFromCNI(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return json.Marshal(info)
}

// Forget removes the file of an attachment, if it exists.
func (Devices) Forget(file string) error { return utils.CleanDeviceInfoForCNI(file) }
