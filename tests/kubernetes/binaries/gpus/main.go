// A device plugin that offers GPUs which do not exist: the kubelet counts them, hands them to containers, and so
// does everything above it. A container learns which ones it got from NVIDIA_VISIBLE_DEVICES, as from the real one.
//
// SIGUSR1 makes one more GPU unhealthy, SIGUSR2 makes all of them healthy again.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin is what the kubelet talks to. `changed` is closed, and made anew, whenever the health of a GPU changes.
type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	lock      sync.Mutex
	count     int
	unhealthy int
	changed   chan struct{}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer) error {
	for {
		devices, changed := p.devices()
		if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		visible := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{Envs: visible})
	}
	return response, nil
}

func (p *plugin) devices() ([]*v1beta1.Device, chan struct{}) {
	p.lock.Lock()
	defer p.lock.Unlock()
	devices := make([]*v1beta1.Device, p.count)
	for index := range devices {
		health := v1beta1.Healthy
		if index < p.unhealthy {
			health = v1beta1.Unhealthy
		}
		devices[index] = &v1beta1.Device{ID: fmt.Sprintf("GPU-pretended-%d", index), Health: health}
	}
	return devices, p.changed
}

func (p *plugin) setHealth(received os.Signal) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if received == syscall.SIGUSR1 {
		p.unhealthy = min(p.unhealthy+1, p.count)
	} else {
		p.unhealthy = 0
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// serve offers the plugin to one life of the kubelet and returns when that life is over. A kubelet that starts
// empties the folder, so the socket must be made after its own.
func (p *plugin) serve(folder, resource string) error {
	kubelet := filepath.Join(folder, "kubelet.sock")
	life, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	own := filepath.Join(folder, "pretended-gpus.sock")
	if err := os.Remove(own); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	defer server.Stop()
	go server.Serve(listener)

	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	limited, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: filepath.Base(own), ResourceName: resource}
	if _, err := v1beta1.NewRegistrationClient(connection).Register(limited, request); err != nil {
		return err
	}
	log.Printf("registered %d of %s", p.count, resource)
	for {
		time.Sleep(200 * time.Millisecond) // sleep: between two looks
		now, err := os.Stat(kubelet)
		if err != nil || !os.SameFile(life, now) {
			return nil
		}
		if _, err := os.Stat(own); err != nil {
			return nil
		}
	}
}

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "the name under which the kubelet counts them")
	count := flag.Int("count", 1, "how many there are")
	folder := flag.String("folder", v1beta1.DevicePluginPath, "where the kubelet's socket is")
	flag.Parse()

	offered := &plugin{count: *count, changed: make(chan struct{})}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for received := range signals {
			offered.setHealth(received)
		}
	}()
	for {
		if err := offered.serve(*folder, *resource); err != nil && !os.IsNotExist(err) {
			log.Print(err)
		}
		time.Sleep(100 * time.Millisecond) // sleep: between two tries
	}
}
