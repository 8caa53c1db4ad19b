// Command api-server runs an API server of Kubernetes and its etcd, whose data is in ./etcd.
package main

import (
	"log"
	"net/url"
	"os"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = "etcd", "error", true
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = free, free
	config.ListenPeerUrls, config.AdvertisePeerUrls = free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	command := app.NewAPIServerCommand()
	command.SetArgs(append(os.Args[1:], "--etcd-servers=http://"+etcd.Clients[0].Addr().String()))
	os.Exit(cli.Run(command))
}
