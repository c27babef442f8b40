"""tunewarden: repairs GPU training jobs when Alertmanager says that they are going wrong."""
