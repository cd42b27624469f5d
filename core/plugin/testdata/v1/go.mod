module v1

go 1.26.0


require (
	github.com/fatih/color v1.13.0 
	github.com/golang/protobuf v1.5.4 
	github.com/hashicorp/go-hclog v1.6.3 
	github.com/hashicorp/go-plugin v1.8.0 
	github.com/hashicorp/yamux v0.1.2 
	github.com/mattn/go-colorable v0.1.12 
	github.com/mattn/go-isatty v0.0.17 
	github.com/oklog/run v1.1.0 
	golang.org/x/net v0.60.0 
	golang.org/x/sys v0.50.0 
	golang.org/x/text v0.42.0 
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 
	google.golang.org/grpc v1.85.0 
	google.golang.org/protobuf v1.36.12 
)

