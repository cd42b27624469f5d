module starling/sdk

go 1.26.0
