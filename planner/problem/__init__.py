"""What is asked: the model as a graph of layers, the cluster, the workload; what training needs of them."""
