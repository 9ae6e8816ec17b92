// Importer is a typical importer of go-cni: it calls the seven methods.
package main

import (
	"context"
	"fmt"
	"os"

	gocni "github.com/containerd/go-cni"
)

func main() {
	if err := run(context.Background(), "c1", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, id, path string) error {
	network, err := gocni.New(gocni.WithMinNetworkCount(1), gocni.WithPluginDir([]string{gocni.DefaultCNIDir}))
	if err != nil {
		return err
	}
	if err := network.Load(gocni.WithLoNetwork, gocni.WithDefaultConf); err != nil {
		return err
	}
	if err := network.Status(); err != nil {
		return err
	}
	fmt.Println(len(network.GetConfig().Networks), "networks")
	labels := gocni.WithLabels(map[string]string{"IgnoreUnknown": "1"})
	setUp := network.Setup
	if os.Getenv("SERIALLY") != "" {
		setUp = network.SetupSerially
	}
	result, err := setUp(ctx, id, path, labels)
	if err != nil {
		return err
	}
	for name, config := range result.Interfaces {
		fmt.Println(name, config.IPConfigs)
	}
	if err := network.Check(ctx, id, path, labels); err != nil {
		return err
	}
	return network.Remove(ctx, id, path, labels)
}
