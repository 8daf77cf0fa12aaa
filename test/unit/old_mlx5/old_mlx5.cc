// A libmlx5 of long ago, for mlx5_table_test.cc: it has the names, one of them in an older version.
extern "C" {
void mlx5dv_is_supported() {}
void mlx5dv_query_device() {}
void mlx5dv_init_obj() {}
}
